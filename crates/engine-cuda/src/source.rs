//! What a kernel is compiled from: a file of `kernels/`, and the macros that fit it to one step.

use std::fmt::{Display, Write};

const DEVICE: &str = include_str!("kernels/device.cu");
pub(crate) const PRELUDE: &str = include_str!("kernels/prelude.cu");

/// The macros that a file of `kernels/` asks for in its first lines, in order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Defines(Vec<(String, String)>);

impl Defines {
    /// Adds a macro: `NAME` or `NAME(parameters)`, and what it stands for. That may be several lines.
    pub(crate) fn add(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    /// The names, without parameters.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.split('(').next().unwrap_or(name))
    }

    /// What a name stands for.
    #[cfg(test)]
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All of them as the compiler reads them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.0 {
            let value = value.trim_end().replace('\n', " \\\n");
            let _ = writeln!(text, "#define {name} {value}");
        }
        text
    }
}

/// A file, and what is defined before it: all that a kernel is made of.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelSource {
    /// CUDA C++ without the prelude.
    pub(crate) text: &'static str,
    /// What the file leaves open.
    pub(crate) defines: Defines,
    /// The kernel's name in it.
    pub(crate) entry: &'static str,
}

impl KernelSource {
    /// The whole text that is compiled.
    pub fn full_text(&self) -> String {
        format!("{DEVICE}\n{PRELUDE}\n{}{}", self.defines.text(), self.text)
    }

    pub(crate) fn options(architecture: &str) -> Vec<String> {
        vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()]
    }

    /// The name of its file in the cache: the same for the same kernel.
    pub fn key(&self, architecture: &str, compiler: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(compiler.as_bytes());
        for option in Self::options(architecture) {
            hasher.update(option.as_bytes()).update(b"\0");
        }
        hasher.update(self.full_text().as_bytes());
        hasher.finalize().to_hex()[..32].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_are_lines_in_front_of_the_file() {
        let mut defines = Defines::default();
        defines.add("PACK", 4).add("LOAD(x)", "from_half(x)").add("STEPS", "int a = 1;\nint b = 2;\n");
        assert_eq!(
            defines.text(),
            "#define PACK 4\n#define LOAD(x) from_half(x)\n#define STEPS int a = 1; \\\nint b = 2;\n"
        );
        assert_eq!(defines.names().collect::<Vec<_>>(), ["PACK", "LOAD", "STEPS"]);
        let source = KernelSource { text: "the file", defines, entry: "step" };
        assert!(source.full_text().ends_with("\nint b = 2;\nthe file"));
    }

    #[test]
    fn kernels_are_kept_by_everything_that_makes_them() {
        let of = |value: i32| {
            let mut defines = Defines::default();
            defines.add("A", value);
            KernelSource { text: "x", defines, entry: "step" }
        };
        let key = of(1).key("sm_90a", "nvrtc 13.0");
        assert_eq!(key, of(1).key("sm_90a", "nvrtc 13.0"));
        assert_ne!(key, of(2).key("sm_90a", "nvrtc 13.0"));
        assert_ne!(key, of(1).key("sm_80", "nvrtc 13.0"));
        assert_ne!(key, of(1).key("sm_90a", "nvrtc 13.1"));
    }
}
