//! `farfork invoke`.

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use super::activation::Activation;
use super::parameters::Parameters;
use super::remote::{Answer, Question, Remote, path};
use crate::CommandResult;
use crate::output::print_json;
use crate::progress::Progress;

/// How often it is looked whether a call that takes long has ended.
const LOOK: Duration = Duration::from_millis(500);
/// For so long: a call waits for its instance, and may take five minutes then.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to call, with what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The function; /NAMESPACE/NAME if it is not the key's own.
    name: String,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    parameters: Parameters,
    /// Print the result alone: what the function has printed goes to stderr without it.
    #[arg(short, long, conflicts_with_all = ["json", "no_wait"])]
    result: bool,
    /// Do not wait for what comes of it: print the activation's id.
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON document: the whole activation.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand; fails if the function does.
pub(crate) fn run(args: &Args) -> CommandResult {
    let path = format!("{}?blocking={}", path("actions", &args.name), !args.no_wait);
    let answer = args.remote.ask(Question {
        method: Method::POST,
        path: &path,
        body: Some(Value::Object(args.parameters.all()?)),
        doing: &format!("calling {}", args.name),
    })?;
    let id = answer.body["activationId"].as_str().map(str::to_owned);
    // A call that failed was made all the same, and has an activation.
    let Some(id) = id else { return Err(answer.refusal().into()) };
    if args.no_wait {
        match args.json {
            true => print_json(&json!({ "activationId": id }))?,
            false => println!("{id}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let activation = match answer.status {
        202 => awaited(args, &id)?,
        _ => Activation(answer.body),
    };
    tell(args, &activation)
}

fn tell(args: &Args, activation: &Activation) -> CommandResult {
    let response = &activation.0["response"];
    if args.json {
        print_json(&activation.0)?;
    } else {
        if !args.result {
            activation.logs().for_each(|line| eprintln!("{line}"));
        }
        print_json(&response["result"])?;
    }
    if response["success"] == true {
        return Ok(ExitCode::SUCCESS);
    }
    let status = response["status"].as_str().unwrap_or("it has no status");
    eprintln!("farfork: {} has failed: {status} (activation {})", args.name, activation.id());
    Ok(ExitCode::FAILURE)
}

/// What comes of a call for which the platform waits no longer.
fn awaited(args: &Args, id: &str) -> Result<Activation, Box<dyn Error>> {
    let doing = format!("calling {}", args.name);
    let mut progress = Progress::new(&doing);
    let begun = Instant::now();
    // A key opens the activations of its own namespace.
    let path = path("activations", id);
    while begun.elapsed() < PATIENCE {
        let answer = args.remote.get(&path, &doing)?;
        match answer {
            Answer { status: 404, .. } => {}
            answer => return Ok(Activation(answer.good()?)),
        }
        progress.time(begun.elapsed());
        thread::sleep(LOOK);
    }
    drop(progress);
    let words = format!(
        "activation {id} has not ended after {} s: farfork logs {id} may tell more later",
        PATIENCE.as_secs()
    );
    Err(words.into())
}
