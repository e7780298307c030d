//! Judges the files that the globs of a step's check match, in the order of their names. Standard output gets one line
//! of JSON for each file, without times, so that equal trees give equal bytes. Standard error gets the human-readable
//! findings in the format of compilers.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use proctor_core::canonical;
use proctor_core::evidence::escape_output;
use proctor_core::sql::{Batch, Check, Judgement, Policy, Request, Severity, Verdict};
use proctor_core::strict;

/// The maximum number of files of a check.
const MOST_FILES: usize = 10_000;
/// The maximum size of a file, in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// A human-readable message that says why something cannot be judged.
type Fault = String;

/// Runs a check and judges each of its texts with `judge`. The paths of its files are relative to `root`. `seen` lists
/// the files that git sees; the globs match only these.
///
/// # Errors
/// An output stream is closed.
pub fn run(
    json: &str,
    root: &Path,
    seen: &[String],
    judge: &mut dyn FnMut(&Request) -> Judgement,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Verdict> {
    let (texts, mut request) = match read(json, root, seen) {
        Ok(read) => read,
        Err(fault) => {
            writeln!(err, "error: {}", plain(&fault))?;
            return Ok(Verdict::Error);
        }
    };
    let mut verdicts = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let name = text.name();
        match text.sql(root) {
            Ok(sql) => request.sql = sql,
            Err(fault) => {
                writeln!(err, "error: {}", plain(&fault))?;
                verdicts.push(Verdict::Error);
                break;
            }
        }
        let judgement = judge(&request);
        writeln!(out, "{}", line(&name, &judgement))?;
        say(&name, &judgement, err)?;
        verdicts.push(judgement.verdict);
        if request.policy != Policy::Migrate {
            continue;
        }
        // A migration builds on those before it. After a rejected migration the schema is unknown.
        if judgement.verdict != Verdict::Ok {
            let left = texts.len() - index - 1;
            if left > 0 {
                let later = if left == 1 { "1 later file is".to_owned() } else { format!("{left} later files are") };
                writeln!(err, "note: {later} not checked, because the schema after {} is unknown", plain(&name))?;
            }
            break;
        }
        request.schema.push(std::mem::take(&mut request.sql));
    }
    let verdict = worst(&verdicts);
    let of = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let (ok, rejected) = (of(Verdict::Ok), of(Verdict::Reject));
    let unjudged = texts.len() - ok - rejected;
    writeln!(err, "{}: {ok} ok, {rejected} rejected, {unjudged} not judged", verdict.as_str())?;
    Ok(verdict)
}

/// Returns the verdict of the whole check. An error outranks a rejection, and a check that judged nothing is an error.
fn worst(verdicts: &[Verdict]) -> Verdict {
    let has = |wanted| verdicts.contains(&wanted);
    if verdicts.is_empty() || has(Verdict::Error) {
        Verdict::Error
    } else if has(Verdict::Reject) {
        Verdict::Reject
    } else {
        Verdict::Ok
    }
}

/// A text to judge.
enum Text {
    /// The query that the check itself contains.
    Query(String),
    /// The path of a file, relative to the root. The file is read only when its turn comes.
    File(PathBuf),
}

impl Text {
    fn name(&self) -> String {
        match self {
            Self::Query(_) => "query".to_owned(),
            Self::File(file) => file.display().to_string(),
        }
    }

    fn sql(&self, root: &Path) -> Result<String, Fault> {
        match self {
            Self::Query(sql) => Ok(sql.clone()),
            Self::File(file) => text_of(root, file),
        }
    }
}

fn checked(json: &str) -> Result<Check, Fault> {
    strict::from_json(json.as_bytes()).map_err(|error| format!("the check cannot be read: {error}"))
}

/// Returns the texts of a check, and a request with everything that they have in common.
fn read(json: &str, root: &Path, seen: &[String]) -> Result<(Vec<Text>, Request), Fault> {
    let check = checked(json)?;
    let schema = check.schema.iter().map(|file| text_of(root, Path::new(file.as_str()))).collect::<Result<_, _>>()?;
    let database = check.database.as_ref().map(|file| absolute(root, Path::new(file.as_str()))).transpose()?;
    let request = Request {
        schema,
        database,
        policy: check.policy,
        allow: check.allow,
        limits: check.limits,
        question: check.question,
        reject_at: check.reject_at,
        // A file may contain several statements; a query is a single one.
        batch: check.query.is_none().then_some(Batch::Many),
        ..Request::new(check.dialect, "")
    };
    let texts = match check.query {
        Some(query) => vec![Text::Query(query)],
        None => found(&check.files, seen)?.into_iter().map(Text::File).collect(),
    };
    Ok((texts, request))
}

/// Returns the paths of `seen` that a check matches; none if the check has a query. At most `MOST_FILES + 1` are
/// returned, so that [`run`] can report that there are too many.
///
/// # Errors
/// The check cannot be parsed, or one of its globs is invalid.
pub fn files(json: &str, seen: impl Iterator<Item = String>) -> Result<Vec<String>, String> {
    let check = checked(json)?;
    let set = set_of(&check.files)?;
    Ok(seen.filter(|path| set.is_match(path)).take(MOST_FILES + 1).collect())
}

/// Returns the files that the globs match, in the order of their names. A glob without a match is a fault, since a
/// check that judges nothing cannot fail.
fn found(globs: &[String], seen: &[String]) -> Result<Vec<PathBuf>, Fault> {
    let set = set_of(globs)?;
    let mut matched = vec![false; globs.len()];
    let mut files = Vec::new();
    for path in seen {
        let which = set.matches(path);
        if !which.is_empty() {
            which.into_iter().for_each(|at| matched[at] = true);
            files.push(PathBuf::from(path));
        }
    }
    if files.len() > MOST_FILES {
        return Err(format!("the globs find more than {MOST_FILES} files"));
    }
    match globs.iter().zip(&matched).find(|(_, matched)| !**matched) {
        Some((glob, _)) => Err(format!("the glob `{glob}` finds no file that git sees")),
        None => {
            files.sort();
            Ok(files)
        }
    }
}

fn set_of(globs: &[String]) -> Result<GlobSet, Fault> {
    let mut builder = GlobSetBuilder::new();
    for glob in globs {
        let one = GlobBuilder::new(glob).literal_separator(true).build();
        builder.add(one.map_err(|error| format!("`{glob}` is not a glob: {error}"))?);
    }
    builder.build().map_err(|error| format!("the globs are too large: {error}"))
}

fn absolute(root: &Path, file: &Path) -> Result<String, Fault> {
    let path =
        root.join(file).canonicalize().map_err(|error| format!("`{}` cannot be read: {error}", file.display()))?;
    path.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", path.display()))
}

fn text_of(root: &Path, file: &Path) -> Result<String, Fault> {
    let path = root.join(file);
    let unread = |error: io::Error| format!("`{}` cannot be read: {error}", file.display());
    // Opening a FIFO would block.
    if !path.metadata().map_err(unread)?.is_file() {
        return Err(format!("`{}` is no file", file.display()));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|open| open.take(MOST_BYTES + 1).read_to_end(&mut bytes)).map_err(unread)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("`{}` is larger than {} MiB", file.display(), MOST_BYTES >> 20));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("`{}` is not UTF-8 at byte {}", file.display(), error.utf8_error().valid_up_to()))
}

/// Returns one line of JSON with a file and its judgement, without times.
fn line(file: &str, judgement: &Judgement) -> String {
    let mut json = canonical::Json::of(judgement);
    if let canonical::Json::Object(fields) = &mut json {
        fields.remove("timing");
    }
    let of_file = [("file".to_owned(), canonical::Json::String(file.to_owned())), ("judgement".to_owned(), json)];
    String::from_utf8_lossy(&canonical::Json::Object(of_file.into()).to_vec()).into_owned()
}

/// Escapes a text so that it fits on one line, whatever it contains.
fn plain(text: &str) -> String {
    escape_output(text.replace('\n', " ").as_bytes())
}

/// Writes the findings of a file in the format of compilers.
fn say(file: &str, judgement: &Judgement, err: &mut dyn Write) -> io::Result<()> {
    for found in judgement.diagnostics.iter().filter(|found| found.severity > Severity::Note) {
        let place = found.span.map_or(String::new(), |span| format!("{}:{}:", span.line, span.column));
        writeln!(err, "{}:{place} {}[{}]: {}", plain(file), found.severity.as_str(), found.id, plain(&found.message))?;
        if !found.candidates.is_empty() {
            writeln!(err, "    did you mean: {}", plain(&found.candidates.join(", ")))?;
        }
        if let Some(advice) = &found.advice {
            writeln!(err, "    {}", plain(advice))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Engines;
    use proctor_core::sql::{Allow, Dialect, Limits};

    fn check(files: &[&str], policy: Policy) -> Check {
        Check {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            query: None,
            dialect: Dialect::Sqlite,
            schema: vec!["schema.sql".to_owned().try_into().expect("a path")],
            database: None,
            policy,
            question: None,
            allow: Allow::default(),
            limits: Limits::default(),
            reject_at: None,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a test's own files")]
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        root
    }

    fn judged(check: &Check, files: &[(&str, &str)]) -> (Verdict, String, String) {
        let root = tree(files);
        let json = String::from_utf8(canonical::to_vec(check)).expect("text");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut engines = Engines::new(Err("none".to_owned()));
        let judge = &mut |request: &Request| engines.judge(request);
        let seen: Vec<String> = files.iter().map(|(name, _)| (*name).to_owned()).collect();
        let verdict = run(&json, root.path(), &seen, judge, &mut out, &mut err).expect("written");
        (verdict, String::from_utf8(out).expect("text"), String::from_utf8(err).expect("text"))
    }

    const SCHEMA: (&str, &str) = ("schema.sql", "CREATE TABLE t (a INTEGER, b TEXT);");

    #[test]
    fn files_are_judged_in_the_order_of_their_names() {
        let files = [SCHEMA, ("q/b.sql", "SELECT a FROM t;\nSELECT c FROM t;"), ("q/a.sql", "SELECT b FROM t")];
        let (verdict, out, err) = judged(&check(&["q/*.sql"], Policy::Read), &files);
        assert_eq!(verdict, Verdict::Reject);
        let names: Vec<&str> = out.lines().map(|line| &line[..17]).collect();
        assert_eq!(names, [r#"{"file":"q/a.sql""#, r#"{"file":"q/b.sql""#]);
        assert!(err.starts_with("q/b.sql:2:8: error[P0612]: there is no column `c`\n"), "{err}");
        assert!(err.ends_with("reject: 1 ok, 1 rejected, 0 not judged\n"), "{err}");
        assert_eq!(judged(&check(&["q/*.sql"], Policy::Read), &files).1, out, "equal trees, equal bytes");
    }

    #[test]
    fn a_migration_stands_on_those_before_it() {
        let files = [
            SCHEMA,
            ("m/1.sql", "CREATE TABLE u (x INTEGER); ALTER TABLE t ADD COLUMN c TEXT;"),
            ("m/2.sql", "INSERT INTO u (x) SELECT a FROM t WHERE c IS NULL;"),
        ];
        assert_eq!(judged(&check(&["m/*.sql"], Policy::Migrate), &files).0, Verdict::Ok);
    }

    /// The migrations after the rejected one may be valid: the schema that they build on is unknown.
    #[test]
    fn behind_a_migration_that_is_rejected_none_is_judged() {
        let files = [
            SCHEMA,
            ("m/1.sql", "CREATE TABLE u (x INTEGER)"),
            ("m/2.sql", "INSERT INTO v (x) VALUES (1)"),
            ("m/3.sql", "INSERT INTO u (x) VALUES (1)"),
        ];
        let (verdict, out, err) = judged(&check(&["m/*.sql"], Policy::Migrate), &files);
        assert_eq!(verdict, Verdict::Reject);
        assert_eq!(out.lines().count(), 2, "{out}");
        assert!(
            err.contains("note: 1 later file is not checked, because the schema after m/2.sql is unknown"),
            "{err}"
        );
        assert!(err.ends_with("reject: 1 ok, 1 rejected, 1 not judged\n"), "{err}");
    }

    #[test]
    fn globs_look_among_the_files_that_are_seen() {
        let seen = ["other/x.sql", "q/a.txt", "q/deep/x.sql"].map(str::to_owned);
        let find = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
            found(&globs, &seen).map(|files| files.iter().map(|file| file.display().to_string()).collect())
        };
        assert_eq!(find(&["q/**/*.sql"]), Ok(vec!["q/deep/x.sql".to_owned()]));
        assert_eq!(find(&["**/*.sql", "q/deep/x.sql"]).map(|files: Vec<String>| files.len()), Ok(2), "each once");
        assert_eq!(find(&["q/*.sql"]), Err("the glob `q/*.sql` finds no file that git sees".to_owned()));
        let json = String::from_utf8(canonical::to_vec(&check(&["q/**"], Policy::Read))).expect("text");
        assert_eq!(files(&json, seen.iter().cloned()), Ok(seen[1..].to_vec()));
    }

    #[test]
    fn what_cannot_be_judged_is_no_pass() {
        let none = judged(&check(&["q/*.sql"], Policy::Read), &[SCHEMA]);
        assert_eq!(none.0, Verdict::Error);
        assert!(none.2.contains("the glob `q/*.sql` finds no file that git sees"), "{}", none.2);
        let no_schema = judged(&check(&["*.sql"], Policy::Read), &[("a.sql", "SELECT 1")]);
        assert_eq!(no_schema.0, Verdict::Error, "{}", no_schema.2);
        let no_text = judged(&check(&["q"], Policy::Read), &[SCHEMA, ("q/a.sql", "SELECT 1")]);
        assert_eq!(no_text.0, Verdict::Error, "{}", no_text.2);
        let broken = [("schema.sql", "CREATE TABLE ("), ("q/a.sql", "SELECT 1")];
        assert_eq!(judged(&check(&["q/*.sql"], Policy::Read), &broken).0, Verdict::Error);
    }
}
