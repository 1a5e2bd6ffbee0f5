//! What the fast paths of allocation and free are compiled to. A test that runs them cannot show an instruction that
//! is slow, or a second store to shared memory that a compiler might add.

use std::path::PathBuf;
use std::process::Command;

/// The library that C programs link, beside this program.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("an own path");
    own.with_file_name("libfarfork.so")
}

/// Mnemonic and operands of each instruction of a function.
fn instructions(function: &str) -> Vec<(String, String)> {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")]);
    let output = objdump.arg(library()).output().expect("objdump, of binutils, starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = text.lines().filter_map(|line| line.split_once(":\t"));
    let parts = lines.map(|(_, code)| {
        let (mnemonic, operands) =
            code.trim().split_once(char::is_whitespace).unwrap_or((code, ""));
        (mnemonic.to_owned(), operands.trim().to_owned())
    });
    parts.collect()
}

/// Whether it stores one byte: owner bytes are the only bytes that these functions store.
fn is_byte_store((mnemonic, operands): &(String, String)) -> bool {
    let Some((source, target)) = operands.split_once(',') else { return false };
    let is_byte = mnemonic == "movb" || mnemonic == "mov" && is_byte_register(source);
    is_byte && target.ends_with(')')
}

fn is_byte_register(name: &str) -> bool {
    let legacy = ["%al", "%bl", "%cl", "%dl", "%sil", "%dil", "%bpl", "%spl"];
    legacy.contains(&name) || name.starts_with("%r") && name.ends_with('b')
}

#[test]
fn byte_stores_are_recognized() {
    let is =
        |mnemonic: &str, operands: &str| is_byte_store(&(mnemonic.to_owned(), operands.to_owned()));
    assert!(is("mov", "%cl,(%rsi,%rdx,1)") && is("movb", "$0x0,(%r9,%r8,1)"));
    assert!(is("mov", "%r10b,0x8(%rdx)"));
    assert!(!is("mov", "%rcx,(%rsi,%rdx,1)") && !is("mov", "%edx,(%rax,%r8,4)"));
    assert!(!is("movzbl", "(%r8,%rcx,1),%ecx") && !is("mov", "(%rax),%cl"));
}

#[test]
fn fast_paths_have_one_committing_store_and_nothing_slow() {
    let slow = ["lock", "mfence", "sfence", "lfence", "clflush", "clflushopt", "clwb", "syscall"];
    for function in ["ff_alloc", "ff_free"] {
        let found = instructions(function);
        assert!(found.len() > 20, "{function}: {found:?}");
        let commits = found.iter().filter(|instruction| is_byte_store(instruction)).count();
        assert_eq!(commits, 1, "{function}: {found:#?}");
        let is_slow = |(mnemonic, operands): &(String, String)| {
            slow.contains(&mnemonic.as_str())
                || mnemonic.starts_with("xchg") && operands.contains('(')
        };
        let bad: Vec<_> = found.iter().filter(|instruction| is_slow(instruction)).collect();
        assert!(bad.is_empty(), "{function}: {bad:?}");
    }
}
