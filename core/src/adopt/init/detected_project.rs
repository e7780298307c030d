//! Represents a project that `init` found in a repository.

/// A recognized project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedProject {
    /// The kind of the project, such as `Rust workspace`.
    pub title: String,
    /// The directory, relative to the repository; `.` for the repository itself.
    pub dir: String,
    /// The files that identified it, relative to the repository.
    pub files: Vec<String>,
}

/// A skill of the spec, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftedSkill {
    /// The name of the skill.
    pub name: String,
    /// The purpose of the skill.
    pub description: String,
    /// True if the profile `quick` includes the skill.
    pub is_quick: bool,
    /// The number of the steps.
    pub steps: usize,
}

/// A message about something that may make the spec fail, or that was left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InitNote {
    /// The problem and its location.
    pub message: String,
    /// The suggested fix.
    pub hint: String,
}

impl InitNote {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}
