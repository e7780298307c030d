//! Implements `proctor explain P0123` and `proctor explain --codes`, which explain the codes of messages.

use proctor_core::code::{CodeExplanation, ErrorCode, all};
use proctor_core::spec::closest_match;

use crate::args::ExplainArgs;
use crate::error::CliError;
use crate::screen::Screen;
use crate::style::{DIM, STRONG, paint};
use crate::text::{escape_line, wrap};

/// Width of the labels before the explanation of a code, in columns.
const LABEL_WIDTH: usize = 10;

impl ExplainArgs {
    /// Checks whether the arguments ask about a code, as opposed to a step of a repository.
    pub(crate) fn is_about_codes(&self) -> bool {
        self.codes || self.target.as_deref().is_some_and(is_code)
    }
}

/// Checks whether `target` has the form `P0123` or of a code's name. The name of a step contains a `/`.
fn is_code(target: &str) -> bool {
    let number = target.strip_prefix(['P', 'p']).unwrap_or("");
    let is_number = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
    !target.contains('/') && (is_number || target.contains("::"))
}

/// Explains one code, or lists all of them.
///
/// # Errors
/// The code does not exist.
pub(crate) fn explain(args: &ExplainArgs, screen: &mut Screen) -> Result<u8, CliError> {
    let Some(target) = &args.target else {
        screen.out(&render_list(screen.width()));
        return Ok(0);
    };
    let code = ErrorCode::find(target).ok_or_else(|| unknown_code_error(target))?;
    screen.out(&render_code(code, screen.width()));
    Ok(0)
}

fn unknown_code_error(target: &str) -> CliError {
    let codes = all();
    let near = closest_match(target, codes.iter().map(|code| code.name()));
    let hint = match near {
        Some(name) => format!("did you mean `{name}`? `proctor explain --codes` lists all of them"),
        None => "`proctor explain --codes` lists all of them".to_owned(),
    };
    CliError::Usage { message: format!("there is no code `{}`", escape_line(target)), hint }
}

fn render_code(code: ErrorCode, width: usize) -> String {
    let CodeExplanation { meaning: means, reason: why, remedy: mend, example } = code.explanation();
    let mut text = format!("{} {}\n", paint(STRONG, code), paint(DIM, code.name()));
    for (label, content) in [("meaning", means), ("why", why), ("to do", mend)] {
        for (index, line) in wrap(content, width.saturating_sub(LABEL_WIDTH)).iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            text.push_str(&format!("  {}{line}\n", paint(DIM, format!("{label:<8}"))));
        }
    }
    text.push_str(&format!("  {}\n", paint(DIM, "example")));
    text.extend(example.lines().map(|line| format!("    {line}\n")));
    text
}

/// Renders a line for each code.
fn render_list(width: usize) -> String {
    let codes = all();
    let name = codes.iter().map(|code| code.name().len()).max().unwrap_or(0);
    let line = |code: &ErrorCode| {
        let means = crate::text::truncate(code.explanation().meaning, width.saturating_sub(name + 9));
        format!("{}  {:<name$}  {means}", paint(STRONG, code), code.name()).trim_end().to_owned() + "\n"
    };
    codes.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::strip_colours;

    #[test]
    fn explains_a_code() {
        let code = ErrorCode::find("P0116").expect("known");
        insta::assert_snapshot!(strip_colours(&render_code(code, 80)));
        insta::assert_snapshot!(strip_colours(&render_code(code, 40)));
    }

    #[test]
    fn list_fits_the_screen() {
        let text = strip_colours(&render_list(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.lines().count(), all().len());
    }

    #[test]
    fn step_names_are_not_codes() {
        for (target, expected) in
            [("P0116", true), ("p0001", true), ("spec::alias", true), ("P01", false), ("env", false), ("a::b/s", false)]
        {
            assert_eq!(is_code(target), expected, "{target}");
        }
    }

    #[test]
    fn suggests_nearest_code() {
        let error = unknown_code_error("spec::unknown_kye");
        assert!(error.render().contains("did you mean `spec::unknown_key`?"), "{}", error.render());
    }
}
