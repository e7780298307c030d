//! Records the duration of each case in the file that `PROCTOR_CASE_TIMES` names: one line per case, with the
//! milliseconds, a tab, and the name of the trial.

use std::fs::File;
use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Instant;

/// The environment variable that names the file.
const VARIABLE: &str = "PROCTOR_CASE_TIMES";

static FILE: LazyLock<Option<File>> = LazyLock::new(|| {
    #[expect(clippy::disallowed_methods, reason = "the command line names the file")]
    let path = std::env::var_os(VARIABLE)?;
    let opened = File::options().create(true).append(true).open(&path);
    Some(opened.unwrap_or_else(|error| panic!("{VARIABLE}: `{}` cannot be opened: {error}", path.display())))
});

/// The running time of one trial, which is recorded on drop.
pub(crate) struct CaseTimer {
    name: String,
    started: Instant,
}

impl CaseTimer {
    /// Starts the timer of a trial.
    pub(crate) fn start(name: &str) -> Self {
        Self { name: name.to_owned(), started: Instant::now() }
    }
}

impl Drop for CaseTimer {
    fn drop(&mut self) {
        let Some(mut file) = FILE.as_ref() else { return };
        // A single write appends the whole line, although several trials run at once.
        let line = format!("{}\t{}\n", self.started.elapsed().as_millis(), self.name);
        file.write_all(line.as_bytes()).expect("the file of the case times");
    }
}
