//! `farfork-audit PARENT CLONE`: in what two waiting processes differ.

use std::process::ExitCode;

fn main() -> ExitCode {
    let pids: Vec<i32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [parent, clone] = pids[..] else {
        eprintln!("usage: farfork-audit PARENT CLONE");
        return ExitCode::from(2);
    };
    match farfork_audit::compare(parent, clone) {
        Ok(differences) if differences.is_empty() => ExitCode::SUCCESS,
        Ok(differences) => {
            differences.iter().for_each(|difference| println!("{difference}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            let reason = farfork_sys::words::of(&error);
            eprintln!("farfork-audit: cannot compare {parent} with {clone}: {reason}");
            ExitCode::FAILURE
        }
    }
}
