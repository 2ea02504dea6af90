//! Verdicts, counted, and the disagreements among them by class.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::case::Case;
use crate::judge::{Class, Kind, Verdict};
use crate::record::Record;
use crate::session::Answers;

/// The disagreements of one class.
#[derive(Clone, Debug)]
pub struct Found {
    pub count: usize,
    /// The smallest of them.
    pub example: Example,
}

/// One disagreement.
#[derive(Clone, Debug)]
pub struct Example {
    /// Its place in the run.
    pub index: u64,
    pub case: Case,
    pub answers: Answers,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub both_accept: usize,
    pub both_refuse: usize,
    pub limits: BTreeMap<&'static str, usize>,
    pub not_comparable: BTreeMap<&'static str, usize>,
    pub classes: BTreeMap<Class, Found>,
}

impl Tally {
    pub fn add(&mut self, index: u64, case: Case, answers: Answers) {
        match answers.verdict() {
            Verdict::BothAccept => self.both_accept += 1,
            Verdict::BothRefuse => self.both_refuse += 1,
            Verdict::Limit(limit) => *self.limits.entry(limit.words).or_default() += 1,
            Verdict::NotComparable(reason) => {
                *self.not_comparable.entry(reason).or_default() += 1;
            }
            Verdict::Differ(class) => {
                let example = Example {
                    index,
                    case,
                    answers,
                };
                let weight = |example: &Example| (example.case.weight(), example.index);
                self.classes
                    .entry(class)
                    .and_modify(|found| {
                        found.count += 1;
                        if weight(&example) < weight(&found.example) {
                            found.example = example.clone();
                        }
                    })
                    .or_insert(Found { count: 1, example });
            }
        }
    }

    pub fn merge(&mut self, other: Self) {
        self.both_accept += other.both_accept;
        self.both_refuse += other.both_refuse;
        for (mine, theirs) in [
            (&mut self.limits, other.limits),
            (&mut self.not_comparable, other.not_comparable),
        ] {
            for (key, count) in theirs {
                *mine.entry(key).or_default() += count;
            }
        }
        for (class, found) in other.classes {
            let weight = |found: &Found| (found.example.case.weight(), found.example.index);
            self.classes
                .entry(class)
                .and_modify(|mine| {
                    mine.count += found.count;
                    if weight(&found) < weight(mine) {
                        mine.example = found.example.clone();
                    }
                })
                .or_insert(found);
        }
    }

    /// How many questions broke a promise.
    pub fn faults(&self) -> usize {
        let faults = self
            .classes
            .iter()
            .filter(|(class, _)| class.kind.is_fault());
        faults.map(|(_, found)| found.count).sum()
    }

    /// The report: counts first, then the classes, the most frequent first.
    pub fn report(&self, versions: &[String]) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = self.write(&mut text, versions);
        text
    }

    fn write(&self, text: &mut String, versions: &[String]) -> std::fmt::Result {
        writeln!(text, "{:>8}  both accept", self.both_accept)?;
        writeln!(text, "{:>8}  both refuse", self.both_refuse)?;
        for (words, count) in &self.limits {
            writeln!(
                text,
                "{count:>8}  refused as a limit of the package: {words}"
            )?;
        }
        for (reason, count) in &self.not_comparable {
            writeln!(text, "{count:>8}  refused, and not comparable: {reason}")?;
        }
        for kind in Kind::ALL {
            let classes = self.classes.iter().filter(|(class, _)| class.kind == kind);
            let count: usize = classes.clone().map(|(_, found)| found.count).sum();
            writeln!(text, "{count:>8}  {kind}, in {} classes", classes.count())?;
        }
        for kind in Kind::ALL {
            let classes = self.classes.iter().filter(|(class, _)| class.kind == kind);
            let mut classes: Vec<_> = classes.collect();
            classes.sort_by_key(|(class, found)| (usize::MAX - found.count, *class));
            if !classes.is_empty() {
                writeln!(text, "\n==== {kind}")?;
            }
            for (class, found) in classes {
                writeln!(text)?;
                found.write(text, class, versions)?;
            }
        }
        Ok(())
    }
}

const LONGEST_LINE: usize = 600;

impl Found {
    fn write(&self, text: &mut String, class: &Class, versions: &[String]) -> std::fmt::Result {
        writeln!(
            text,
            "# {} times, as case {}",
            self.count, self.example.index
        )?;
        let mut record = Record::of(&self.example.case);
        match &self.example.answers.ours {
            crate::checker::Ours::Refuses { message, .. } => {
                writeln!(text, "# the package says: {}", one_line(message))?;
            }
            crate::checker::Ours::Accepts { .. } => {}
            _ => writeln!(text, "# the checker {}", one_line(&class.ours))?,
        }
        record.accept = match class.kind {
            // What XLA refuses in words, the package may take.
            Kind::RefusesWhatXlaAccepts | Kind::AcceptsWhatXlaRefusesLater => Some(true),
            Kind::CheckerDies => None,
            _ => Some(false),
        };
        if let Ok(theirs) = &self.example.answers.theirs {
            record.plugins = versions
                .iter()
                .zip(theirs)
                .map(|(version, theirs)| (version.clone(), one_line(&theirs.line())))
                .collect();
        }
        text.push_str(&record.to_text());
        Ok(())
    }
}

/// A text without line breaks, as long as a reader wants it.
pub fn one_line(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .take(LONGEST_LINE)
        .collect();
    line.trim().to_owned()
}
