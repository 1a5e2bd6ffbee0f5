//! `farfork invoke`.

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use super::activation::Activation;
use super::parameters::Parameters;
use super::remote::{Remote, Request, Response, path};
use crate::CommandResult;
use crate::output::print_json;
use crate::printable::shown;
use crate::progress::Progress;

/// Interval of queries for the record of a long call.
const POLL: Duration = Duration::from_millis(500);
/// How long to wait for it: a call waits for its instance, and may take five minutes then.
const LONGEST: Duration = Duration::from_secs(600);

/// The function to call, and its parameters.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the function; /NAMESPACE/NAME for a function outside of the key's namespace.
    name: String,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    parameters: Parameters,
    /// Print only the result. Without it, what the function printed goes to stderr.
    #[arg(short, long, conflicts_with_all = ["json", "no_wait"])]
    result: bool,
    /// Do not wait for the result: print the id of the activation.
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON document: the whole activation.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. Fails if the function does.
pub(crate) fn run(args: &Args) -> CommandResult {
    let path = format!("{}?blocking={}", path("actions", &args.name), !args.no_wait);
    let response = args.remote.send(Request {
        method: Method::POST,
        path: &path,
        body: Some(Value::Object(args.parameters.all()?)),
        doing: &format!("calling {}", args.name),
    })?;
    let id = response.body["activationId"].as_str().map(str::to_owned);
    // A call that failed has an activation, too.
    let Some(id) = id else { return Err(response.refusal().into()) };
    if args.no_wait {
        match args.json {
            true => print_json(&json!({ "activationId": id }))?,
            false => println!("{id}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let activation = match response.status {
        202 => poll(args, &id)?,
        _ => Activation(response.body),
    };
    report(args, &activation)
}

fn report(args: &Args, activation: &Activation) -> CommandResult {
    let response = &activation.0["response"];
    if args.json {
        print_json(&activation.0)?;
    } else {
        if !args.result {
            activation.logs().for_each(|line| eprintln!("{}", shown(line, &io::stderr())));
        }
        print_json(&response["result"])?;
    }
    if response["success"] == true {
        return Ok(ExitCode::SUCCESS);
    }
    let status = response["status"].as_str().unwrap_or("unknown status");
    let words = format!("{} failed: {status} (activation {})", args.name, activation.id());
    eprintln!("farfork: {}", shown(&words, &io::stderr()));
    Ok(ExitCode::FAILURE)
}

/// Waits for the record of a call that the platform has answered with its id alone.
fn poll(args: &Args, id: &str) -> Result<Activation, Box<dyn Error>> {
    let doing = format!("calling {}", args.name);
    let mut progress = Progress::new(&doing);
    let begun = Instant::now();
    // Activations belong to the key's own namespace.
    let path = path("activations", id);
    while begun.elapsed() < LONGEST {
        match args.remote.get(&path, &doing)? {
            Response { status: 404, .. } => {}
            response => return Ok(Activation(response.success()?)),
        }
        progress.time(begun.elapsed());
        thread::sleep(POLL);
    }
    drop(progress);
    let message = format!(
        "timed out after {} s waiting for activation {id}; try \"farfork logs {id}\" later",
        LONGEST.as_secs()
    );
    Err(message.into())
}
