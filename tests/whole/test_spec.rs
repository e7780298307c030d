//! Builds specs for tests as text; everything that a case does not set has its default.

use std::fmt::Write as _;

/// A step.
#[derive(Clone)]
pub(crate) struct TestStep {
    name: String,
    /// The `cmd` or `sql` field as YAML.
    action: String,
    fields: Vec<String>,
}

/// A skill.
#[derive(Clone)]
pub(crate) struct TestSkill {
    name: String,
    determinism: &'static str,
    tier: u8,
    fields: Vec<String>,
    steps: Vec<TestStep>,
}

/// A spec whose profile `pr` includes all skills, in order.
#[derive(Clone, Default)]
pub(crate) struct TestSpec {
    top_level: Vec<String>,
    defaults: Vec<String>,
    skills: Vec<TestSkill>,
    /// The number of skills that run at once, if the profile sets it.
    parallel: Option<u32>,
}

impl TestStep {
    /// Creates a step that runs a program with arguments.
    pub(crate) fn argv(name: &str, words: &[&str]) -> Self {
        let words = serde_json::to_string(words).expect("words are JSON");
        Self { name: name.to_owned(), action: format!("cmd: {words}"), fields: Vec::new() }
    }

    /// Creates a step that judges SQLite SQL; `keys` is YAML.
    pub(crate) fn sqlite(name: &str, keys: &str) -> Self {
        Self::sql(name, &format!("dialect: sqlite, {keys}"))
    }

    /// Creates a step that judges SQL; `keys` is YAML.
    pub(crate) fn sql(name: &str, keys: &str) -> Self {
        Self { name: name.to_owned(), action: format!("sql: {{ {keys} }}"), fields: Vec::new() }
    }

    /// Creates a step that runs a script with `sh`.
    pub(crate) fn sh(name: &str, script: &str) -> Self {
        Self::argv(name, &["sh", "-c", script])
    }

    /// Creates a step that runs a program with the system's Python.
    pub(crate) fn python(name: &str, program: &str) -> Self {
        Self::argv(name, &["python3", "-c", program])
    }

    /// Adds a field as YAML.
    pub(crate) fn with_field(mut self, field: &str) -> Self {
        self.fields.push(field.to_owned());
        self
    }

    fn to_yaml(&self) -> String {
        let fields: String = self.fields.iter().map(|field| format!(", {field}")).collect();
        format!("{{ name: {}, {}{fields} }}", self.name, self.action)
    }
}

impl TestSkill {
    /// Creates a skill of determinism class D0 and tier 1.
    pub(crate) fn new(name: &str, steps: impl IntoIterator<Item = TestStep>) -> Self {
        let steps = steps.into_iter().collect();
        Self { name: name.to_owned(), determinism: "D0", tier: 1, fields: Vec::new(), steps }
    }

    /// Sets the tier.
    pub(crate) fn tier(self, tier: u8) -> Self {
        Self { tier, ..self }
    }

    /// Sets the determinism class.
    pub(crate) fn determinism(self, determinism: &'static str) -> Self {
        Self { determinism, ..self }
    }

    /// Adds a field as YAML.
    pub(crate) fn with_field(mut self, field: &str) -> Self {
        self.fields.push(field.to_owned());
        self
    }
}

impl TestSpec {
    /// Creates a spec with these skills.
    pub(crate) fn new(skills: impl IntoIterator<Item = TestSkill>) -> Self {
        Self { skills: skills.into_iter().collect(), ..Self::default() }
    }

    /// Creates a spec with one skill `verify.it`.
    pub(crate) fn from_steps(steps: impl IntoIterator<Item = TestStep>) -> Self {
        Self::new([TestSkill::new("verify.it", steps)])
    }

    /// Creates a spec with one skill `verify.it` and one step `it` that runs a script with `sh`.
    pub(crate) fn from_script(script: &str) -> Self {
        Self::from_steps([TestStep::sh("it", script)])
    }

    /// Adds a line below `defaults`.
    pub(crate) fn with_default(mut self, field: &str) -> Self {
        self.defaults.push(field.to_owned());
        self
    }

    /// Lets this number of skills run at once, if they have `needs`.
    pub(crate) fn parallel(self, number: u32) -> Self {
        Self { parallel: Some(number), ..self }
    }

    /// Adds lines at the top level.
    pub(crate) fn with_top_level(mut self, lines: &str) -> Self {
        self.top_level.push(lines.to_owned());
        self
    }

    /// Returns the YAML. Each step gets the variable `TEST_MARKER`, which identifies its processes.
    pub(crate) fn to_yaml(&self, marker: &str) -> String {
        let mut text = format!("version: 1\ndefaults:\n  env: {{ TEST_MARKER: {marker} }}\n");
        self.defaults.iter().for_each(|field| write_indented(&mut text, 2, field));
        self.top_level.iter().for_each(|lines| write_indented(&mut text, 0, lines));
        let names: Vec<&str> = self.skills.iter().map(|skill| skill.name.as_str()).collect();
        let parallel = self.parallel.map(|number| format!(", parallel: {number}")).unwrap_or_default();
        write_indented(
            &mut text,
            0,
            &format!("profiles:\n  pr: {{ include: [{}]{parallel} }}\nskills:", names.join(", ")),
        );
        self.skills.iter().for_each(|skill| skill.write_yaml(&mut text));
        text
    }
}

impl TestSkill {
    fn write_yaml(&self, text: &mut String) {
        let Self { name, determinism, tier, .. } = self;
        write_indented(text, 2, &format!("{name}:"));
        write_indented(text, 4, "description: a skill of a test");
        write_indented(text, 4, &format!("determinism: {determinism}"));
        write_indented(text, 4, &format!("tier: {tier}"));
        self.fields.iter().for_each(|field| write_indented(text, 4, field));
        write_indented(text, 4, "steps:");
        self.steps.iter().for_each(|step| write_indented(text, 6, &format!("- {}", step.to_yaml())));
    }
}

fn write_indented(text: &mut String, indent: usize, lines: &str) {
    for line in lines.lines() {
        writeln!(text, "{:indent$}{line}", "").expect("a String takes all");
    }
}
