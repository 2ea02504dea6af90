//! The checker and the plugins, asked together.

use std::io;
use std::path::{Path, PathBuf};

use compile_worker::SpawnError;

use crate::case::Case;
use crate::checker::{Checker, Ours};
use crate::judge::{judge, Class, Kind, Verdict};
use crate::plugin::{Plugin, Theirs};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the checker: {0}")]
    Checker(#[from] io::Error),
    #[error("the plugin: {0}")]
    Plugin(#[from] SpawnError),
}

/// What is started for a session.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This program, and the argument with which it is a checker.
    pub checker: (PathBuf, &'static str),
    pub worker: PathBuf,
    pub plugins: Vec<PathBuf>,
}

/// A checker and a worker for each plugin.
#[derive(Debug)]
pub struct Session {
    checker: Checker,
    plugins: Vec<Plugin>,
}

/// Both answers.
#[derive(Clone, Debug)]
pub struct Answers {
    pub ours: Ours,
    /// One of each plugin, or why they cannot be asked the same.
    pub theirs: Result<Vec<Theirs>, &'static str>,
    /// Whether a process of XLA's ended that did not when it was asked again.
    pub unsteady: bool,
    /// Whether XLA drops the custom call unread.
    pub dead: bool,
}

impl Answers {
    pub fn verdict(&self) -> Verdict {
        match judge(&self.ours, &self.theirs, self.dead) {
            Verdict::Differ(class) if self.unsteady => Verdict::Differ(Class {
                kind: Kind::Unsteady,
                ..class
            }),
            verdict => verdict,
        }
    }
}

impl Session {
    /// # Errors
    /// [`Error`].
    pub fn start(programs: &Programs) -> Result<Self, Error> {
        let (checker, argument) = &programs.checker;
        let start = |plugin: &PathBuf| Plugin::start(&programs.worker, plugin.as_path());
        Ok(Self {
            checker: Checker::new(checker.clone(), argument),
            plugins: programs
                .plugins
                .iter()
                .map(start)
                .collect::<Result<_, _>>()?,
        })
    }

    /// The versions of the plugins' APIs.
    pub fn versions(&self) -> Vec<String> {
        self.plugins
            .iter()
            .map(|plugin| plugin.version().to_owned())
            .collect()
    }

    /// # Errors
    /// [`Error`].
    pub fn ask(&mut self, case: &Case) -> Result<Answers, Error> {
        let ours = self.checker.ask(case)?;
        let theirs = match &ours {
            Ours::Accepts { program } => Ok(self.ask_plugins(case, program)?),
            Ours::Refuses { .. } => match case.text() {
                Ok(text) => Ok(self.ask_plugins(case, &text)?),
                Err(reason) => Err(reason),
            },
            Ours::Dies { .. } | Ours::Hangs => Err("the checker gave no answer"),
        };
        Ok(Answers {
            ours,
            theirs,
            unsteady: false,
            dead: case.is_dead(),
        })
    }

    /// Asks, and asks again where XLA's process ended over what is accepted: it may be that the
    /// machine was slow, or that an earlier question left the process damaged.
    ///
    /// # Errors
    /// [`Error`].
    pub fn ask_twice(&mut self, case: &Case) -> Result<Answers, Error> {
        let mut first = self.ask(case)?;
        let ended = |answers: &Answers| matches!(answers.verdict(), Verdict::Differ(class) if class.kind == Kind::AcceptsWhatEndsXla);
        first.unsteady = ended(&first) && !ended(&self.ask(case)?);
        Ok(first)
    }

    fn ask_plugins(&mut self, case: &Case, program: &[u8]) -> Result<Vec<Theirs>, Error> {
        self.plugins
            .iter_mut()
            .map(|plugin| Ok(plugin.ask(case, program)?))
            .collect()
    }
}

/// The CPU plugins in the user's cache, and the one that `EXLA_CUSTOM_CALL_PJRT_CPU` names.
pub fn installed_plugins() -> Vec<PathBuf> {
    let mut plugins: Vec<PathBuf> = Vec::new();
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_default();
    if let Ok(files) = cache.join("exla_custom_call/plugins/cpu").read_dir() {
        plugins.extend(
            files
                .filter_map(|file| Some(file.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|extension| extension == "so")),
        );
    }
    if let Some(path) = std::env::var_os("EXLA_CUSTOM_CALL_PJRT_CPU") {
        let path = PathBuf::from(path);
        if !plugins.contains(&path) {
            plugins.push(path);
        }
    }
    plugins.sort();
    plugins
}
