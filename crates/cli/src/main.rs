//! spike
use std::os::fd::AsFd;
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let path = Path::new(&args[2]);
    match args[1].as_str() {
        "create" => {
            farfork_pool::Pool::create(path, args[3].parse().unwrap())
                .map(|_| ())
                .unwrap_or_else(|e| panic!("{e}"));
        }
        "ckpt" => {
            let pool = farfork_pool::Pool::open(path).unwrap_or_else(|e| panic!("{e}"));
            match farfork_checkpoint::checkpoint(&pool, args[3].parse().unwrap(), false) {
                Ok(c) => {
                    eprintln!("{c:?}");
                    println!("{}", c.cid)
                }
                Err(e) => {
                    eprintln!("{e}");
                    std::process::exit(1)
                }
            }
        }
        "restore" => {
            let pool = farfork_pool::Pool::open(path).unwrap_or_else(|e| panic!("{e}"));
            let cid = args[3].parse().unwrap();
            let at = farfork_restore::attach(&pool, cid).unwrap_or_else(|e| panic!("{e}"));
            let mut t = farfork_restore::Template::start().unwrap_or_else(|e| panic!("{e}"));
            let n: usize = args.get(4).map_or(1, |n| n.parse().unwrap());
            for i in 0..n {
                let pin = std::fs::File::open("/dev/null").unwrap();
                let ext: Vec<std::os::fd::OwnedFd> = vec![
                    std::io::stdin().as_fd().try_clone_to_owned().unwrap(),
                    std::io::stdout().as_fd().try_clone_to_owned().unwrap(),
                    std::io::stderr().as_fd().try_clone_to_owned().unwrap(),
                ];
                let now = || {
                    let t = std::time::Instant::now();
                    let _ = t;
                    let mut ts = std::fs::read_to_string("/proc/uptime").unwrap();
                    ts.clear();
                    0u64
                };
                let _ = now;
                let t0 = mono();
                let s = t
                    .spawn(
                        cid,
                        &at.request(farfork_plan::protocol::PidMode::New, 3),
                        at.pool().as_fd(),
                        pin.as_fd(),
                        &ext,
                    )
                    .unwrap_or_else(|e| panic!("{e}"));
                let plan = pool.bytes(at.image.plan_offset, at.image.plan_bytes).unwrap();
                match s.next(plan) {
                    Ok(farfork_restore::Event::Running { pid, at_ns }) => {
                        eprintln!(
                            "pid {pid} total {} us: {:?}",
                            (at_ns[5] - t0) / 1000,
                            at_ns.iter().map(|a| (a - t0) / 1000).collect::<Vec<_>>()
                        );
                        if i + 1 == n {
                            eprintln!("{:?}", s.next(plan));
                        } else {
                            std::mem::forget(s);
                        }
                    }
                    other => {
                        eprintln!("{other:?}");
                        if let Err(e) = other {
                            eprintln!("{e}");
                        }
                        std::process::exit(1)
                    }
                }
            }
        }
        _ => {}
    }
}
fn mono() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
