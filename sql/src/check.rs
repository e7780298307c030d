//! Judges the files that the globs of a step's check match, in the order of their names. Standard output gets one line
//! of JSON for each file, without times, so that equal trees give equal bytes. Standard error gets the human-readable
//! findings in the format of compilers.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use proctor_core::record::evidence::escape_output;
use proctor_core::sql::{Judgement, SqlBatch, SqlCheck, SqlPolicy, SqlRequest, SqlSeverity, SqlVerdict};
use proctor_core::text::canonical;
use proctor_core::text::strict_deserialize;

/// The maximum number of files of a check.
const MAX_FILES: usize = 10_000;
/// The maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The reason why a check, or one of its files, cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The check is not valid JSON of its format.
    #[error("the check cannot be read: {0}")]
    Malformed(#[source] serde_json::Error),
    /// A glob is invalid.
    #[error("`{glob}` is not a glob: {source}")]
    InvalidGlob {
        /// The glob as written.
        glob: String,
        /// The reason.
        source: globset::Error,
    },
    /// The globs together are too large.
    #[error("the globs need too much memory: {0}")]
    LargeGlobs(#[source] globset::Error),
    /// A glob matches nothing.
    #[error("the glob `{0}` matches no file that git tracks or would add")]
    NoMatch(String),
    /// The globs match too many files.
    #[error("the globs match more than {MAX_FILES} files")]
    TooManyFiles,
    /// A file cannot be read.
    #[error("`{}` cannot be read: {source}", file.display())]
    Unreadable {
        /// The file, relative to the root.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path names something other than a file.
    #[error("`{}` is not a file", .0.display())]
    NotAFile(PathBuf),
    /// A file is too large.
    #[error("`{}` is larger than {} MiB", .0.display(), MAX_FILE_BYTES >> 20)]
    LargeFile(PathBuf),
    /// A file is not UTF-8.
    #[error("`{}` is not UTF-8 at byte {}", file.display(), source.valid_up_to())]
    NotUtf8 {
        /// The file, relative to the root.
        file: PathBuf,
        /// The position and the reason.
        source: std::str::Utf8Error,
    },
    /// The path of a file is not UTF-8.
    #[error("{} is not UTF-8", .0.display())]
    PathNotUtf8(PathBuf),
}

/// Runs a check and judges each of its texts with `judge`. The paths of its files are relative to `root`. `seen` lists
/// the files that git sees; the globs match only these.
///
/// # Errors
/// An output stream is closed.
pub fn run(
    json: &str,
    root: &Path,
    git_files: &[String],
    judge: &mut dyn FnMut(&SqlRequest) -> Judgement,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<SqlVerdict> {
    let (texts, mut request) = match read_inputs(json, root, git_files) {
        Ok(read) => read,
        Err(fault) => {
            writeln!(err, "error: {}", escape_line(&fault.to_string()))?;
            return Ok(SqlVerdict::Error);
        }
    };
    let mut verdicts = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let name = text.name();
        match text.sql(root) {
            Ok(sql) => request.sql = sql,
            Err(fault) => {
                writeln!(err, "error: {}", escape_line(&fault.to_string()))?;
                verdicts.push(SqlVerdict::Error);
                break;
            }
        }
        let judgement = judge(&request);
        writeln!(out, "{}", judgement_line(&name, &judgement))?;
        write_findings(&name, &judgement, err)?;
        verdicts.push(judgement.verdict);
        if request.policy != SqlPolicy::Migrate {
            continue;
        }
        // A migration builds on those before it. After a rejected migration the schema is unknown.
        if judgement.verdict != SqlVerdict::Ok {
            let left = texts.len() - index - 1;
            if left > 0 {
                let later = if left == 1 { "1 later file is".to_owned() } else { format!("{left} later files are") };
                writeln!(err, "note: {later} not checked, because the schema after {} is unknown", escape_line(&name))?;
            }
            break;
        }
        request.schema.push(std::mem::take(&mut request.sql));
    }
    let verdict = overall_verdict(&verdicts);
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let (ok, rejected) = (count(SqlVerdict::Ok), count(SqlVerdict::Reject));
    let unjudged = texts.len() - ok - rejected;
    writeln!(err, "{}: {ok} ok, {rejected} rejected, {unjudged} not judged", verdict.as_str())?;
    Ok(verdict)
}

/// Returns the verdict of the whole check. An error outranks a rejection, and a check that judged nothing is an error.
fn overall_verdict(verdicts: &[SqlVerdict]) -> SqlVerdict {
    let has = |wanted| verdicts.contains(&wanted);
    if verdicts.is_empty() || has(SqlVerdict::Error) {
        SqlVerdict::Error
    } else if has(SqlVerdict::Reject) {
        SqlVerdict::Reject
    } else {
        SqlVerdict::Ok
    }
}

/// A text to judge.
enum CheckedText {
    /// The query that the check itself contains.
    Query(String),
    /// The path of a file, relative to the root. The file is read only when its turn comes.
    File(PathBuf),
}

impl CheckedText {
    fn name(&self) -> String {
        match self {
            Self::Query(_) => "query".to_owned(),
            Self::File(file) => file.display().to_string(),
        }
    }

    fn sql(&self, root: &Path) -> Result<String, CheckError> {
        match self {
            Self::Query(sql) => Ok(sql.clone()),
            Self::File(file) => read_text_file(root, file),
        }
    }
}

fn parse_check(json: &str) -> Result<SqlCheck, CheckError> {
    strict_deserialize::from_json(json.as_bytes()).map_err(CheckError::Malformed)
}

/// Returns the texts of a check, and a request with everything that they have in common.
fn read_inputs(json: &str, root: &Path, git_files: &[String]) -> Result<(Vec<CheckedText>, SqlRequest), CheckError> {
    let check = parse_check(json)?;
    let schema =
        check.schema.iter().map(|file| read_text_file(root, Path::new(file.as_str()))).collect::<Result<_, _>>()?;
    let database = check.database.as_ref().map(|file| absolute_path(root, Path::new(file.as_str()))).transpose()?;
    let request = SqlRequest {
        schema,
        database,
        policy: check.policy,
        allow: check.allow,
        limits: check.limits,
        question: check.question,
        reject_at: check.reject_at,
        // A file may contain several statements; a query is a single one.
        batch: check.query.is_none().then_some(SqlBatch::Many),
        ..SqlRequest::new(check.dialect, "")
    };
    let texts = match check.query {
        Some(query) => vec![CheckedText::Query(query)],
        None => matching_files(&check.files, git_files)?.into_iter().map(CheckedText::File).collect(),
    };
    Ok((texts, request))
}

/// Returns the paths of `seen` that a check matches; none if the check has a query. At most `MOST_FILES + 1` are
/// returned, so that [`run`] can report that there are too many.
///
/// # Errors
/// The check cannot be parsed, or one of its globs is invalid.
pub fn matching_paths(json: &str, git_files: impl Iterator<Item = String>) -> Result<Vec<String>, CheckError> {
    let check = parse_check(json)?;
    let set = build_glob_set(&check.files)?;
    Ok(git_files.filter(|path| set.is_match(path)).take(MAX_FILES + 1).collect())
}

/// Returns the files that the globs match, in the order of their names. A glob without a match is a fault, since a
/// check that judges nothing cannot fail.
fn matching_files(globs: &[String], git_files: &[String]) -> Result<Vec<PathBuf>, CheckError> {
    let set = build_glob_set(globs)?;
    let mut matched = vec![false; globs.len()];
    let mut files = Vec::new();
    for path in git_files {
        let which = set.matches(path);
        if !which.is_empty() {
            which.into_iter().for_each(|at| matched[at] = true);
            files.push(PathBuf::from(path));
        }
    }
    if files.len() > MAX_FILES {
        return Err(CheckError::TooManyFiles);
    }
    match globs.iter().zip(&matched).find(|(_, matched)| !**matched) {
        Some((glob, _)) => Err(CheckError::NoMatch(glob.clone())),
        None => {
            files.sort();
            Ok(files)
        }
    }
}

fn build_glob_set(globs: &[String]) -> Result<GlobSet, CheckError> {
    let mut builder = GlobSetBuilder::new();
    for glob in globs {
        let one = GlobBuilder::new(glob).literal_separator(true).build();
        builder.add(one.map_err(|source| CheckError::InvalidGlob { glob: glob.clone(), source })?);
    }
    builder.build().map_err(CheckError::LargeGlobs)
}

fn absolute_path(root: &Path, file: &Path) -> Result<String, CheckError> {
    let path = root.join(file).canonicalize();
    let path = path.map_err(|source| CheckError::Unreadable { file: file.to_owned(), source })?;
    path.into_os_string().into_string().map_err(|path| CheckError::PathNotUtf8(path.into()))
}

fn read_text_file(root: &Path, file: &Path) -> Result<String, CheckError> {
    let path = root.join(file);
    let unread = |source: io::Error| CheckError::Unreadable { file: file.to_owned(), source };
    // Opening a FIFO would block.
    if !path.metadata().map_err(unread)?.is_file() {
        return Err(CheckError::NotAFile(file.to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|open| open.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(unread)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(CheckError::LargeFile(file.to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| CheckError::NotUtf8 { file: file.to_owned(), source: error.utf8_error() })
}

/// Returns one line of JSON with a file and its judgement, without times.
fn judgement_line(file: &str, judgement: &Judgement) -> String {
    let mut json = canonical::Json::from_serializable(judgement);
    if let canonical::Json::Object(fields) = &mut json {
        fields.remove("timing");
    }
    let of_file = [("file".to_owned(), canonical::Json::String(file.to_owned())), ("judgement".to_owned(), json)];
    String::from_utf8_lossy(&canonical::Json::Object(of_file.into()).to_vec()).into_owned()
}

/// Escapes a text so that it fits on one line, whatever it contains.
fn escape_line(text: &str) -> String {
    escape_output(text.replace('\n', " ").as_bytes())
}

/// Writes the findings of a file in the format of compilers.
fn write_findings(file: &str, judgement: &Judgement, err: &mut dyn Write) -> io::Result<()> {
    for found in judgement.diagnostics.iter().filter(|found| found.severity > SqlSeverity::Note) {
        let place = found.span.map_or(String::new(), |span| format!("{}:{}:", span.line, span.column));
        writeln!(
            err,
            "{}:{place} {}[{}]: {}",
            escape_line(file),
            found.severity.as_str(),
            found.id,
            escape_line(&found.message)
        )?;
        if !found.candidates.is_empty() {
            writeln!(err, "    did you mean: {}", escape_line(&found.candidates.join(", ")))?;
        }
        if let Some(advice) = &found.advice {
            writeln!(err, "    {}", escape_line(advice))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::EngineCache;
    use proctor_core::sql::{Dialect, SqlAllow, SqlResourceLimits};

    fn check(files: &[&str], policy: SqlPolicy) -> SqlCheck {
        SqlCheck {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            query: None,
            dialect: Dialect::Sqlite,
            schema: vec!["schema.sql".to_owned().try_into().expect("a path")],
            database: None,
            policy,
            question: None,
            allow: SqlAllow::default(),
            limits: SqlResourceLimits::default(),
            reject_at: None,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a test's own files")]
    fn write_tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (place, text) in files {
            let at = root.path().join(place);
            std::fs::create_dir_all(at.parent().expect("a parent")).expect("made");
            std::fs::write(at, text).expect("written");
        }
        root
    }

    fn run_check(check: &SqlCheck, files: &[(&str, &str)]) -> (SqlVerdict, String, String) {
        let root = write_tree(files);
        let json = String::from_utf8(canonical::to_vec(check)).expect("text");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut engines = EngineCache::new(Err(proctor_duckdb::LibraryNotFound::NotPassed));
        let judge = &mut |request: &SqlRequest| engines.judge(request);
        let seen: Vec<String> = files.iter().map(|(place, _)| (*place).to_owned()).collect();
        let verdict = run(&json, root.path(), &seen, judge, &mut out, &mut err).expect("written");
        (verdict, String::from_utf8(out).expect("text"), String::from_utf8(err).expect("text"))
    }

    const SCHEMA: (&str, &str) = ("schema.sql", "CREATE TABLE t (a INTEGER, b TEXT);");

    #[test]
    fn judges_files_in_name_order() {
        let files = [SCHEMA, ("q/b.sql", "SELECT a FROM t;\nSELECT c FROM t;"), ("q/a.sql", "SELECT b FROM t")];
        let (verdict, out, err) = run_check(&check(&["q/*.sql"], SqlPolicy::Read), &files);
        assert_eq!(verdict, SqlVerdict::Reject);
        let names: Vec<&str> = out.lines().map(|line| &line[..17]).collect();
        assert_eq!(names, [r#"{"file":"q/a.sql""#, r#"{"file":"q/b.sql""#]);
        assert!(err.starts_with("q/b.sql:2:8: error[P0612]: there is no column `c`\n"), "{err}");
        assert!(err.ends_with("reject: 1 ok, 1 rejected, 0 not judged\n"), "{err}");
        assert_eq!(run_check(&check(&["q/*.sql"], SqlPolicy::Read), &files).1, out, "equal trees, equal bytes");
    }

    #[test]
    fn migration_sees_earlier_migrations() {
        let files = [
            SCHEMA,
            ("m/1.sql", "CREATE TABLE u (x INTEGER); ALTER TABLE t ADD COLUMN c TEXT;"),
            ("m/2.sql", "INSERT INTO u (x) SELECT a FROM t WHERE c IS NULL;"),
        ];
        assert_eq!(run_check(&check(&["m/*.sql"], SqlPolicy::Migrate), &files).0, SqlVerdict::Ok);
    }

    /// The migrations after the rejected one may be valid: the schema that they build on is unknown.
    #[test]
    fn stops_after_rejected_migration() {
        let files = [
            SCHEMA,
            ("m/1.sql", "CREATE TABLE u (x INTEGER)"),
            ("m/2.sql", "INSERT INTO v (x) VALUES (1)"),
            ("m/3.sql", "INSERT INTO u (x) VALUES (1)"),
        ];
        let (verdict, out, err) = run_check(&check(&["m/*.sql"], SqlPolicy::Migrate), &files);
        assert_eq!(verdict, SqlVerdict::Reject);
        assert_eq!(out.lines().count(), 2, "{out}");
        assert!(
            err.contains("note: 1 later file is not checked, because the schema after m/2.sql is unknown"),
            "{err}"
        );
        assert!(err.ends_with("reject: 1 ok, 1 rejected, 1 not judged\n"), "{err}");
    }

    #[test]
    fn globs_match_only_git_files() {
        let seen = ["other/x.sql", "q/a.txt", "q/deep/x.sql"].map(str::to_owned);
        let find = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
            let texts = |files: Vec<PathBuf>| files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>();
            matching_files(&globs, &seen).map(texts)
        };
        assert_eq!(find(&["q/**/*.sql"]).expect("finds"), ["q/deep/x.sql"]);
        assert_eq!(find(&["**/*.sql", "q/deep/x.sql"]).expect("finds").len(), 2, "each once");
        let unmatched = find(&["q/*.sql"]).expect_err("no match").to_string();
        assert_eq!(unmatched, "the glob `q/*.sql` matches no file that git tracks or would add");
        let json = String::from_utf8(canonical::to_vec(&check(&["q/**"], SqlPolicy::Read))).expect("text");
        assert_eq!(matching_paths(&json, seen.iter().cloned()).expect("matches"), seen[1..]);
    }

    #[test]
    fn unjudgeable_input_is_error() {
        let none = run_check(&check(&["q/*.sql"], SqlPolicy::Read), &[SCHEMA]);
        assert_eq!(none.0, SqlVerdict::Error);
        assert!(none.2.contains("the glob `q/*.sql` matches no file that git tracks or would add"), "{}", none.2);
        let no_schema = run_check(&check(&["*.sql"], SqlPolicy::Read), &[("a.sql", "SELECT 1")]);
        assert_eq!(no_schema.0, SqlVerdict::Error, "{}", no_schema.2);
        let no_text = run_check(&check(&["q"], SqlPolicy::Read), &[SCHEMA, ("q/a.sql", "SELECT 1")]);
        assert_eq!(no_text.0, SqlVerdict::Error, "{}", no_text.2);
        let broken = [("schema.sql", "CREATE TABLE ("), ("q/a.sql", "SELECT 1")];
        assert_eq!(run_check(&check(&["q/*.sql"], SqlPolicy::Read), &broken).0, SqlVerdict::Error);
    }
}
