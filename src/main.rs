//! The `foretoken` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    foretoken::cli::main()
}
