//! nginx: as one process it is cloned; with workers it is a tree.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use farfork_tests::way::Way;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::serving::{self, Server};

/// The program. On Debian it lies where only root's PATH leads.
pub const SERVER: &str = "nginx";
/// Large enough for `sendfile` to stop in the middle of it.
const FILE_BYTES: usize = 3 << 20;

struct Nginx {
    server: Server,
    port: u16,
    directory: PathBuf,
}

impl Nginx {
    /// A server of the files in its directory, with so many workers, or by itself.
    fn start(name: &str, workers: Option<usize>) -> Outcome<Nginx> {
        let (port, directory) = (serving::free_port()?, testbed::work_dir(name)?);
        let text: String = (0..FILE_BYTES / 16).map(|line| format!("{line:15}\n")).collect();
        serving::write(&directory.join("file"), &text)?;
        serving::write(&directory.join("conf"), &configuration(port, &directory, workers))?;
        let mut command = Command::new(SERVER);
        command.arg("-p").arg(&directory).arg("-c").arg(directory.join("conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Trouble::during("starting nginx", error))?;
        let nginx = Nginx { server: Server::new(child), port, directory };
        testbed::eventually("nginx", || Ok(TcpStream::connect(("127.0.0.1", port)).is_ok()))?;
        Ok(nginx)
    }

    /// The whole file, and then a second request on the same connection.
    fn must_serve(&self, place: Option<i64>, port: u16, who: &str) -> Outcome {
        let mut client = serving::connect(place, port)?;
        let file = std::fs::read(self.directory.join("file"))
            .map_err(|error| Trouble::during("reading the file", error))?;
        for (path, status, content) in [("file", 200, Some(&file)), ("none", 404, None)] {
            let (seen, body) = get(&mut client, &format!("/{path}?{who}"))
                .map_err(|error| Trouble::during(&format!("asking {who} for {path}"), error))?;
            if seen != status || content.is_some_and(|content| *content != body) {
                let bytes = body.len();
                return Err(Trouble::Failed(format!("{who}: {path}: {seen}, {bytes} bytes")));
            }
        }
        Ok(())
    }

    /// Each of `whos` stands in the log that parent and clones append to.
    fn must_have_logged(&self, whos: &[&str]) -> Outcome {
        let log = std::fs::read_to_string(self.directory.join("access"))
            .map_err(|error| Trouble::during("reading the log", error))?;
        match whos.iter().find(|who| log.matches(&format!("/file?{who} ")).count() != 1) {
            None => Ok(()),
            Some(who) => Err(Trouble::Failed(format!("no single line of {who} in {log}"))),
        }
    }
}

fn configuration(port: u16, directory: &std::path::Path, workers: Option<usize>) -> String {
    let processes = match workers {
        Some(count) => format!("worker_processes {count};"),
        None => "master_process off;".to_owned(),
    };
    let at = directory.display();
    format!(
        "daemon off; {processes} pid {at}/pid; error_log {at}/error info; user root;
         events {{ worker_connections 64; }}
         http {{
             access_log {at}/access; sendfile on; server_tokens off;
             client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
             fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
             server {{ listen 127.0.0.1:{port}; root {at}; }}
         }}"
    )
}

/// Status and content of an answer on a connection that stays.
fn get(client: &mut TcpStream, path: &str) -> std::io::Result<(u16, Vec<u8>)> {
    write!(client, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let mut reader = BufReader::new(client);
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or(0);
        } else if let Some(rest) = line.strip_prefix("Content-Length: ") {
            length = rest.trim().parse().unwrap_or(0);
        } else if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((status, body))
}

/// Without workers: two clones serve at the parent's address in network namespaces of their own,
/// a third beside the parent, and an old connection of the parent's lives through it all.
pub fn is_cloned() -> Outcome {
    serves_in_clones(&Nginx::start("nginx", None)?, "test/nginx", &[])
}

/// With workers the same holds of the whole tree.
pub fn with_workers_is_cloned() -> Outcome {
    let parent = Nginx::start("nginx-workers", Some(2))?;
    let image = "test/nginx-workers";
    serving::must_refuse_checkpoint(parent.server.pid(), image, &["child process", "--tree"])?;
    serves_in_clones(&parent, image, &["--tree"])
}

/// In ghosts, each clone serves at the parent's address.
pub fn is_cloned_in_ghosts() -> Outcome {
    farfork::ghosts_possible()?;
    let (parent, image) = (Nginx::start("nginx-ghosts", None)?, "test/nginx-ghosts");
    serving::checkpoint(parent.server.pid(), image, &[])?;
    let ways = Way::in_ghosts();
    let clones: Outcome<Vec<_>> =
        ways.iter().map(|way| serving::in_ghost(*way, image, &[])).collect();
    let clones = clones?;
    let whos: Vec<String> = ways.iter().map(|way| way.name()).collect();
    for ((pid, _), who) in clones.iter().zip(&whos) {
        parent.must_serve(Some(*pid), parent.port, who)?;
    }
    parent.must_serve(None, parent.port, "parent")?;
    let whos: Vec<&str> = whos.iter().map(String::as_str).chain(["parent"]).collect();
    parent.must_have_logged(&whos)?;
    for (pid, ghost) in clones {
        must_quit(pid)?;
        testbed::eventually("a ghost's end", || Ok(farfork::remains(&ghost).is_empty()))?;
    }
    farfork::forget(testbed::pool()?, image)
}

fn serves_in_clones(parent: &Nginx, image: &str, more: &[&str]) -> Outcome {
    let mut old = serving::connect(None, parent.port)?;
    let during = |error| Trouble::during("asking the parent on an old connection", error);
    get(&mut old, "/none").map_err(during)?;
    let pool = testbed::pool()?;
    serving::checkpoint(parent.server.pid(), image, more)?;
    let [blue, red] = serving::on_other_nodes(image)?;
    parent.must_serve(Some(blue), parent.port, "blue")?;
    parent.must_serve(Some(red), parent.port, "red")?;
    parent.must_serve(None, parent.port, "parent")?;
    let (beside, port) = serving::beside_parent(image, parent.port)?;
    parent.must_serve(None, port, "beside")?;
    parent.must_have_logged(&["blue", "red", "parent", "beside"])?;
    for pid in [blue, red, beside] {
        must_quit(pid)?;
    }
    get(&mut old, "/none").map_err(during)?;
    farfork::forget(pool, image)
}

/// The signal for an orderly exit of nginx, after it has answered all requests.
fn must_quit(pid: i64) -> Outcome {
    let pid = Pid::from_raw(pid as i32);
    kill(pid, Signal::SIGQUIT).map_err(|error| Trouble::during("asking a clone to quit", error))?;
    testbed::eventually("the end of a clone", || Ok(kill(pid, None).is_err()))
}
