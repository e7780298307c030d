//! File types of pre-commit and how to recognize them: the tags of its library `identify` that published
//! configurations use.

/// A file type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileType {
    /// The tag of the type.
    pub(super) tag: &'static str,
    /// The extensions of the names, without the dot.
    pub(super) extensions: &'static [&'static str],
    /// File names of this type without one of these extensions.
    pub(super) names: &'static [&'static str],
    /// Interpreters of its scripts, for files whose name has no extension.
    pub(super) interpreters: &'static [&'static str],
}

const fn file_type(tag: &'static str, extensions: &'static [&'static str]) -> FileType {
    FileType { tag, extensions, names: &[], interpreters: &[] }
}

impl FileType {
    const fn with_names(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    const fn with_interpreters(self, interpreters: &'static [&'static str]) -> Self {
        Self { interpreters, ..self }
    }

    /// Returns the type for a tag.
    pub(super) fn from_tag(tag: &str) -> Option<&'static Self> {
        FILE_TYPES.iter().find(|kind| kind.tag == tag)
    }
}

const XML_EXTENSIONS: &[&str] = &[
    "csproj",
    "fsproj",
    "gpx",
    "inx",
    "kml",
    "lpi",
    "mscx",
    "pom",
    "props",
    "pyproj",
    "resx",
    "rng",
    "slnx",
    "svg",
    "targets",
    "urdf",
    "vbproj",
    "vcxproj",
    "wixproj",
    "wsdl",
    "wxi",
    "wxl",
    "wxs",
    "xhtml",
    "xacro",
    "xlf",
    "xliff",
    "xaml",
    "xcscheme",
    "xcworkspacedata",
    "xml",
    "xsd",
    "xsl",
    "xslt",
    "yin",
    "zcml",
];
const CPP_EXTENSIONS: &[&str] = &[
    "c++", "c++m", "cc", "ccm", "cpp", "cppm", "cxx", "cxxm", "h", "hh", "hpp", "hxx", "inl", "ino", "ipp", "ixx",
    "mm", "tpp",
];
const SHELL_NAMES: &[&str] = &[
    ".bash_aliases",
    ".bash_profile",
    ".bashrc",
    ".cshrc",
    ".envrc",
    ".profile",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshrc",
    ".zshenv",
    "PKGBUILD",
    "direnvrc",
];
const YAML_NAMES: &[&str] = &[".ansible-lint", ".clang-format", ".clang-tidy", ".salt-lint", ".yamllint"];
const TOML_NAMES: &[&str] = &["Cargo.toml", "Cargo.lock", "Pipfile", "poetry.lock", "pyproject.toml", "uv.lock"];
const RUBY_NAMES: &[&str] = &["Brewfile", "config.ru", "Fastfile", "Gemfile", "Rakefile", "Vagrantfile"];
const TEXT_NAMES: &[&str] = &[
    "AUTHORS",
    "CHANGELOG",
    "CONTRIBUTING",
    "COPYING",
    "LICENSE",
    "MAINTAINERS",
    "NEWS",
    "NOTICE",
    "PATENTS",
    "README",
];
const INI_NAMES: &[&str] = &[
    ".codespellrc",
    ".coveragerc",
    ".flake8",
    ".gitconfig",
    ".gitlint",
    ".hgrc",
    ".isort.cfg",
    ".pypirc",
    ".rstcheck.cfg",
    ".sqlfluff",
    "pylintrc",
    "setup.cfg",
];

/// Every type, by its tag.
const FILE_TYPES: &[FileType] = &[
    file_type("asciidoc", &["adoc", "asciidoc"]),
    file_type("astro", &["astro"]),
    file_type("bash", &["bash", "bats"])
        .with_names(&[".bash_aliases", ".bash_profile", ".bashrc", ".envrc", "PKGBUILD", "direnvrc"])
        .with_interpreters(&["bash", "bats"]),
    file_type("batch", &["bat", "cmd"]),
    file_type("bats", &["bats"]).with_interpreters(&["bats"]),
    file_type("bazel", &["bazel", "bzl"]).with_names(&["BUILD", "WORKSPACE"]),
    file_type("c", &["c", "h"]),
    file_type("c#", &["cs", "csx"]),
    file_type("c++", CPP_EXTENSIONS),
    file_type("clojure", &["clj", "cljc", "cljs", "edn"]),
    file_type("cmake", &["cmake"]).with_names(&["CMakeLists.txt"]),
    file_type("csh", &["csh"]).with_names(&[".cshrc"]).with_interpreters(&["csh"]),
    file_type("css", &["css"]),
    file_type("csv", &["csv"]),
    file_type("cuda", &["cu", "cuh"]),
    file_type("cython", &["pxd", "pxi", "pyx"]),
    file_type("dart", &["dart"]),
    file_type("diff", &["diff", "patch"]),
    file_type("dockerfile", &[]).with_names(&["Containerfile", "Dockerfile"]),
    file_type("dotenv", &["env"]),
    file_type("elixir", &["ex", "exs"]),
    file_type("erb", &["erb"]),
    file_type("fish", &["fish"]),
    file_type("gherkin", &["feature"]),
    file_type("go", &["go"]),
    file_type("go-mod", &[]).with_names(&["go.mod"]),
    file_type("graphql", &["graphql"]),
    file_type("groovy", &["gradle", "groovy", "jenkins", "jenkinsfile"]).with_names(&["Jenkinsfile"]),
    file_type("haskell", &["hs"]),
    file_type("hcl", &["hcl"]),
    file_type("header", &["h", "hh", "hpp", "hxx"]),
    file_type("html", &["htm", "html", "xhtml"]),
    file_type("image", &["avif", "bmp", "gif", "jpeg", "jpg", "png", "ppm", "svg", "tif", "tiff", "webp"]),
    file_type("ini", &["ini"]).with_names(INI_NAMES),
    file_type("java", &["java"]),
    file_type("javascript", &["cjs", "js", "mjs"]).with_interpreters(&["node", "nodejs"]),
    file_type("jinja", &["j2", "jinja", "jinja2"]),
    file_type("json", &["ejson", "geojson", "ipynb", "json", "jsonld"]).with_names(&[
        ".babelrc",
        ".bowerrc",
        ".csslintrc",
        ".jshintrc",
        "Pipfile.lock",
    ]),
    file_type("json5", &["json5"]),
    file_type("jsx", &["jsx"]),
    file_type("julia", &["jl"]),
    file_type("jupyter", &["ipynb"]),
    file_type("kotlin", &["kt", "kts"]),
    file_type("ksh", &[]).with_interpreters(&["ksh"]),
    file_type("less", &["less"]),
    file_type("lua", &["lua"]),
    file_type("makefile", &["make", "mk"]).with_names(&["GNUmakefile", "Makefile", "makefile"]),
    file_type("markdown", &["markdown", "md"]),
    file_type("mdx", &["mdx"]),
    file_type("nix", &["nix"]),
    file_type("objective-c", &["m"]),
    file_type("objective-c++", &["mm"]),
    file_type("ocaml", &["ml", "mli"]),
    file_type("pem", &["crt", "key", "pem"]),
    file_type("perl", &["pl", "pm"]).with_interpreters(&["perl"]),
    file_type("php", &["php", "php4", "php5", "phtml"]).with_interpreters(&["php", "php7", "php8"]),
    file_type("plain-text", &["txt"]).with_names(TEXT_NAMES),
    file_type("pofile", &["po"]),
    file_type("powershell", &["ps1", "psd1", "psm1"]),
    file_type("prisma", &["prisma"]),
    file_type("proto", &["proto"]),
    file_type("pyi", &["pyi"]),
    file_type("pyproject", &[]).with_names(&["pyproject.toml"]),
    file_type("python", &["gyp", "gypi", "py", "pyt", "pyw", "tac", "wsgi"])
        .with_names(&[".pdbrc", "wscript"])
        .with_interpreters(&["python", "python2", "python3"]),
    file_type("r", &["r"]),
    file_type("robot", &["robot"]),
    file_type("rst", &["rst"]),
    file_type("ruby", &["gemspec", "jbuilder", "rake", "rb"]).with_names(RUBY_NAMES).with_interpreters(&["ruby"]),
    file_type("rust", &["rs"]),
    file_type("sass", &["sass"]),
    file_type("scala", &["sbt", "sc", "scala"]),
    file_type("scss", &["scss"]),
    file_type("sh", &[]).with_interpreters(&["sh"]),
    file_type("shell", &["bash", "bats", "csh", "sh", "zsh"])
        .with_names(SHELL_NAMES)
        .with_interpreters(&["ash", "bash", "bats", "csh", "dash", "ksh", "sh", "tcsh", "zsh"]),
    file_type("solidity", &["sol"]),
    file_type("sql", &["sql"]),
    file_type("svelte", &["svelte"]),
    file_type("svg", &["svg"]),
    file_type("swift", &["swift"]),
    file_type("system-verilog", &["sv", "svh"]),
    file_type("tcsh", &[]).with_interpreters(&["tcsh"]),
    file_type("terraform", &["tf", "tfvars"]),
    file_type("tex", &["sty", "tex"]),
    file_type("textproto", &["textproto", "txtpb"]),
    file_type("toml", &["toml"]).with_names(TOML_NAMES),
    file_type("ts", &["ts"]),
    file_type("tsv", &["tsv"]),
    file_type("tsx", &["tsx"]),
    file_type("verilog", &["v", "vh"]),
    file_type("vhdl", &["vhd"]),
    file_type("vue", &["vue"]),
    file_type("xml", XML_EXTENSIONS),
    file_type("yaml", &["eyaml", "yaml", "yamlld", "yml"]).with_names(YAML_NAMES),
    file_type("zig", &["zig"]),
    file_type("zsh", &["zsh"])
        .with_names(&[".zlogin", ".zlogout", ".zprofile", ".zshrc", ".zshenv"])
        .with_interpreters(&["zsh"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_types_are_sorted_and_recognizable() {
        assert!(FILE_TYPES.is_sorted_by_key(|kind| kind.tag));
        for kind in FILE_TYPES {
            let known = kind.extensions.len() + kind.names.len() + kind.interpreters.len();
            assert!(known > 0, "{kind:?}");
        }
        assert_eq!(FileType::from_tag("python").expect("known").extensions[2], "py");
        assert_eq!(FileType::from_tag("nonsense"), None);
    }
}
