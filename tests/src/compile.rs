//! Builds the programs at test time, once each, when a source is newer than the program.

pub use crate::places::profile_dir;
use farfork_sys::sync::locked;

use crate::program::Source;
use crate::{Outcome, Program, Trouble};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

const CFLAGS: &[&str] =
    &["-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];

/// A way to make a program from its source.
struct Recipe {
    /// What the program's file name has after that of its source.
    suffix: &'static str,
    compile: fn(&str, &Path) -> Outcome,
}

const C: Recipe = Recipe { suffix: "", compile: |name, to| compile_c(name, to, "cc", &["-ldl"]) };
const MUSL: Recipe =
    Recipe { suffix: ".musl", compile: |name, to| compile_c(name, to, "musl-gcc", &["-static"]) };
const C32: Recipe =
    Recipe { suffix: ".32", compile: |name, to| compile_c(name, to, "cc", &["-m32"]) };
const GO: Recipe = Recipe { suffix: "", compile: compile_go };

/// The sources of the programs.
pub fn programs_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// The command that starts `program`, compiled first if needed.
pub fn command(program: &Program) -> Outcome<Command> {
    let mut command = match program.source {
        Source::C(name) => Command::new(built(name, &C)?),
        Source::Musl(name) => Command::new(built(name, &MUSL)?),
        Source::C32(name) => Command::new(built(name, &C32)?),
        Source::Go(name) => Command::new(built(name, &GO)?),
        Source::Script(interpreter, options, file) => {
            let mut command = Command::new(tool(interpreter)?);
            command.args(options).arg(programs_dir().join(file));
            command
        }
    };
    command.envs(program.env.iter().copied());
    if let Some(library) = program.preload_path()? {
        command.env("LD_PRELOAD", library);
    }
    Ok(command)
}

/// Whether all that `program` needs is installed. A compiler is not needed for what is built.
pub fn possible(program: &Program) -> Outcome {
    let needed = match program.source {
        Source::C(name) if is_built(name, &C)? => "timeout",
        Source::C(_) => "cc",
        Source::Musl(name) if is_built(name, &MUSL)? => "timeout",
        Source::Musl(_) => "musl-gcc",
        Source::C32(_) => return can_compile_for_32_bits(),
        Source::Go(_) => "go",
        Source::Script(interpreter, ..) => interpreter,
    };
    program.preload_path()?;
    tool(needed).map(drop)
}

/// Whether the compiler has its 32-bit half, found out once.
fn can_compile_for_32_bits() -> Outcome {
    static CAN: OnceLock<bool> = OnceLock::new();
    let compiles = || {
        let mut command = Command::new("cc");
        command.args(["-m32", "-include", "errno.h", "-x", "c", "-fsyntax-only", "/dev/null"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    if *CAN.get_or_init(compiles) {
        return Ok(());
    }
    Err(Trouble::Skipped("gcc-multilib is not installed".into()))
}

/// Where a program is installed that is looked for as a shell does.
pub fn tool(name: &str) -> Outcome<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Trouble::Skipped(format!("{name} is not installed")))
}

/// One lock per program: several tests want the same one, others need not wait.
fn lock_of(name: &str) -> Arc<Mutex<()>> {
    static LOCKS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut locks = locked(&LOCKS);
    Arc::clone(locks.entry(name.to_owned()).or_default())
}

fn built(name: &str, recipe: &Recipe) -> Outcome<PathBuf> {
    let file = format!("{name}{}", recipe.suffix);
    let lock = lock_of(&file);
    let _one_at_a_time = locked(&lock);
    let directory = built_dir()?;
    std::fs::create_dir_all(&directory)
        .map_err(|error| Trouble::during("making target/programs", error))?;
    let program = directory.join(&file);
    if !is_built(name, recipe)? {
        // Renamed into place: another test process may be starting it.
        let fresh = directory.join(format!("{file}.{}", std::process::id()));
        (recipe.compile)(name, &fresh)?;
        std::fs::rename(&fresh, &program)
            .map_err(|error| Trouble::during("placing a program", error))?;
    }
    Ok(program)
}

/// Where programs are built.
fn built_dir() -> Outcome<PathBuf> {
    Ok(profile_dir()?.parent().map(|target| target.join("programs")).unwrap_or_default())
}

fn is_built(name: &str, recipe: &Recipe) -> Outcome<bool> {
    let program = built_dir()?.join(format!("{name}{}", recipe.suffix));
    Ok(program.is_file() && modified(&program) >= newest_source(name))
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Headers count for every C program.
fn newest_source(name: &str) -> SystemTime {
    let mut newest = modified(&programs_dir().join(format!("{name}.c")));
    for directory in [programs_dir(), programs_dir().join(name)] {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ext| ext == "h" || ext == "go" || ext == "mod") {
                newest = newest.max(modified(&path));
            }
        }
    }
    newest
}

fn compile_c(name: &str, to: &Path, compiler: &str, more: &[&str]) -> Outcome {
    let mut command = Command::new(tool(compiler)?);
    command.args(CFLAGS).arg(to).arg(programs_dir().join(format!("{name}.c")));
    run(command.arg("-lm").args(more))
}

fn compile_go(name: &str, to: &Path) -> Outcome {
    let mut command = Command::new(tool("go")?);
    run(command.arg("build").arg("-o").arg(to).arg(".").current_dir(programs_dir().join(name)))
}

fn run(command: &mut Command) -> Outcome {
    let what = format!("{command:?}");
    let output = command.output().map_err(|error| Trouble::during(&what, error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Trouble::during(&what, String::from_utf8_lossy(&output.stderr)))
}
