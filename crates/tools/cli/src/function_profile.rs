//! `farfork profile`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_profile::{Model, Options, Payload, Placement, Profile};
use farfork_types::LocalShare;

use crate::output::print_json;
use crate::platform::remote::{Remote, path};
use crate::{CommandResult, size};

/// Share of the last-level cache that a function has to itself.
const CACHE: &str = "4M";
/// Latency of near memory, in nanoseconds: the lowest point of CXLfork's figure 9.
const NEAR_NS: f64 = 100.0;

/// The function, its payloads, and the shares.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of a deployed Python function, or a Python file, zip or folder.
    function: String,
    /// JSON file with the arguments of calls. Their size is that of the file, or the number under the key
    /// payload_bytes, for functions that fetch their input. May be repeated. Default: no arguments.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    payload: Vec<PathBuf>,
    /// Shares of near memory, from 0 to 1.
    #[arg(long, value_name = "SHARES", value_delimiter = ',', value_parser = share,
          default_value = "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1")]
    shares: Vec<LocalShare>,
    /// Name of the function in the profile. Default: its own.
    #[arg(long)]
    name: Option<String>,
    /// Measured calls of each payload.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    calls: u64,
    /// Which pages are near: those with most misses (default where far memory is modelled), or evenly spread ones, as the
    /// kernel's weighted interleave has them (the only ones where it is measured).
    #[arg(long, value_enum, value_name = "WHICH")]
    placement: Option<Which>,
    /// Model far memory also where this machine has a memory node without processors, on which it would be measured.
    #[arg(long)]
    modelled: bool,
    /// Modelled latency of memory that is not near, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = 391.0, value_parser = latency)]
    far_ns: f64,
    /// Modelled size of the last-level cache.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = CACHE)]
    cache: u64,
    /// Modelled number of misses that overlap.
    #[arg(long, value_name = "N", default_value_t = 4.0, value_parser = overlap)]
    overlap: f64,
    /// Python with the package farfork. A name means the program beside farfork, or in PATH.
    #[arg(long, value_name = "PATH", env = "FARFORK_PYTHON", default_value = "python3")]
    python: PathBuf,
    #[command(flatten)]
    remote: Remote,
    /// Print one JSON document: the profile, as farfork sim --profile and farfork serve --profile read it.
    #[arg(long)]
    json: bool,
}

/// Which pages are near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Those with most misses.
    Hottest,
    /// Evenly spread ones.
    Even,
}

fn share(text: &str) -> Result<LocalShare, String> {
    let wrong = || format!("invalid share '{text}' (expected 0 to 1 in steps of 0.001, e.g. 0.8)");
    let permille = text.parse::<f64>().map_err(|_| wrong())? * 1000.0;
    if !(0.0..=1000.0).contains(&permille) || (permille - permille.round()).abs() > 1e-6 {
        return Err(wrong());
    }
    LocalShare::from_permille(permille.round() as u16).map_err(|_| wrong())
}

fn latency(text: &str) -> Result<f64, String> {
    let ns = text.parse().ok().filter(|ns: &f64| (NEAR_NS..=1e6).contains(ns));
    ns.ok_or_else(|| format!("invalid latency '{text}' (expected {NEAR_NS} to 1000000 ns)"))
}

fn overlap(text: &str) -> Result<f64, String> {
    let misses = text.parse().ok().filter(|misses: &f64| (1.0..=64.0).contains(misses));
    misses.ok_or_else(|| format!("invalid overlap '{text}' (expected 1 to 64 misses)"))
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let payloads = match args.payload.is_empty() {
        true => vec![Payload::none()],
        false => args.payload.iter().map(|file| Payload::read(file)).collect::<Result<_, _>>()?,
    };
    let mut shares = args.shares.clone();
    shares.sort_unstable();
    shares.dedup();
    let fetched = tempfile::tempdir()?;
    let function = match Path::new(&args.function) {
        local if local.exists() => local.to_owned(),
        _ => fetch(args, fetched.path())?,
    };
    let model = model(args)?;
    let options = Options {
        name: args.name.clone().unwrap_or_else(|| name_of(&args.function)),
        function,
        python: crate::serve::program(&args.python)?,
        payloads,
        shares,
        calls: args.calls,
        model,
    };
    let profile = farfork_profile::run(&options, |what| eprintln!("{what}"))?;
    if args.json {
        print_json(&profile)?;
    } else {
        show(&profile);
    }
    Ok(ExitCode::SUCCESS)
}

/// The model of far memory; `None` where it is measured.
fn model(args: &Args) -> Result<Option<Model>, Box<dyn Error>> {
    if !args.modelled && farfork_profile::can_measure() {
        if args.placement == Some(Which::Hottest) {
            return Err("cannot measure with the hottest pages near: only the model knows which these are; use \
                        --placement even, or --modelled"
                .into());
        }
        return Ok(None);
    }
    let placement = match args.placement {
        None | Some(Which::Hottest) => Placement::Hottest,
        Some(Which::Even) => Placement::Even,
    };
    let (cache_bytes, far_ns, overlap) = (args.cache, args.far_ns, args.overlap);
    Ok(Some(Model { cache_bytes, near_ns: NEAR_NS, far_ns, overlap, placement }))
}

/// The name of a function: that of its file without the suffix, or that of the deployed one without its package.
fn name_of(function: &str) -> String {
    let path = Path::new(function);
    match path.file_stem().filter(|_| path.exists()) {
        Some(stem) => stem.to_string_lossy().into_owned(),
        None => function.rsplit('/').next().unwrap_or(function).to_owned(),
    }
}

/// The code of a deployed function, in a file.
fn fetch(args: &Args, into: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let name = &args.function;
    let doing = format!("fetching the code of {name}");
    let place = format!("{}?code=true", path("actions", name));
    let response = args.remote.get(&place, &doing)?;
    if response.status == 404 {
        return Err(format!(
            "cannot profile {name}: it is neither a file nor a deployed function; farfork functions lists these"
        )
        .into());
    }
    let exec = response.success()?["exec"].take();
    let kind = exec["kind"].as_str().unwrap_or_default();
    if !kind.starts_with("python") {
        return Err(format!(
            "cannot profile {name}: its kind is {kind}, and only Python functions can be profiled"
        )
        .into());
    }
    let code = exec["code"].as_str().unwrap_or_default();
    let (file, bytes) = match exec["binary"].as_bool() {
        Some(true) => ("function.zip", STANDARD.decode(code)?),
        _ => ("function.py", code.as_bytes().to_vec()),
    };
    let file = into.join(file);
    std::fs::write(&file, bytes)?;
    Ok(file)
}

fn show(profile: &Profile) {
    let name = &profile.function;
    match (profile.machine.get("near_nodes"), profile.machine.get("far_nodes")) {
        (Some(near), Some(far)) if !profile.modelled => {
            println!("{name}: measured, near memory on node {near} and far memory on node {far}");
        }
        _ => println!(
            "{name}: latencies of shares below 1 are MODELLED (misses of an emulated processor)"
        ),
    }
    println!(
        "{:>12} {:>6} {:>12} {:>8} {:>10} {:>10} {:>10}",
        "payload", "share", "P50 us", "slower", "near", "pool", "far"
    );
    for cell in &profile.cells {
        let whole = profile.cells.iter().find(|other| {
            other.payload_bytes == cell.payload_bytes
                && other.local_permille == LocalShare::ALL_PERMILLE
        });
        let slower = whole.map_or(String::new(), |whole| {
            let (us, all) = (cell.latency_us.p50 as f64, whole.latency_us.p50.max(1) as f64);
            format!("{:.1}%", (us / all - 1.0) * 100.0)
        });
        println!(
            "{:>12} {:>6.3} {:>12} {:>8} {:>10} {:>10} {:>10}",
            cell.payload_bytes,
            f64::from(cell.local_permille) / 1000.0,
            cell.latency_us.p50,
            slower,
            size::show(cell.near_bytes),
            size::show(cell.pool_bytes),
            size::show(cell.far_bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_deployed_functions_may_have_dots() {
        assert_eq!(["resize.v2", "images/resize.v2"].map(name_of), ["resize.v2"; 2]);
        let file = tempfile::Builder::new().prefix("resize").suffix(".v2.py").tempfile().unwrap();
        let name = name_of(file.path().to_str().unwrap());
        assert!(name.starts_with("resize") && name.ends_with(".v2"), "{name}");
    }

    #[test]
    fn shares_are_fractions_in_thousandths() {
        let of = |text| share(text).map(|share| share.permille());
        assert_eq!(["0", "0.3", "0.125", "1", "1.0"].map(of), [0, 300, 125, 1000, 1000].map(Ok));
        for wrong in ["1.1", "-0.1", "0.0001", "half", "", "NaN"] {
            assert!(of(wrong).unwrap_err().contains("expected 0 to 1"), "{wrong}");
        }
    }
}
