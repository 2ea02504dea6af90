//! Cases that are known, with the right answers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checker::Ours;
use crate::record::{parse_all, Record};

/// The files of a corpus and the records in each.
///
/// # Errors
/// Those of the files, and a file that is no list of records.
pub fn load(directory: &Path) -> io::Result<Vec<(PathBuf, Vec<Record>)>> {
    let mut files: Vec<_> = directory
        .read_dir()?
        .map(|file| Ok(file?.path()))
        .collect::<io::Result<_>>()?;
    files.retain(|path: &PathBuf| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let records = parse_all(&fs::read_to_string(&path)?)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            Ok((path, records))
        })
        .collect()
}

/// Whether the package answers a record as it should; `Err` says what it answers instead.
pub fn right(record: &Record, ours: &Ours) -> Result<(), String> {
    match (record.accept, ours) {
        (None, _) => Err("the record has no verdict".into()),
        (Some(true), Ours::Accepts { .. }) | (Some(false), Ours::Refuses { .. }) => Ok(()),
        (Some(false), Ours::Accepts { .. }) => Err("it is accepted".into()),
        (_, Ours::Refuses { message, .. }) => Err(format!("it is refused: {message}")),
        (_, Ours::Dies { cause, .. }) => Err(format!("the checker dies: {cause}")),
        (_, Ours::Hangs) => Err("the checker hangs".into()),
    }
}

/// Checks the package's answer against a record. A record that is marked `open` has to be answered
/// wrongly still: once it is not, the mark has to go.
pub fn check(record: &Record, ours: &Ours) -> Result<(), String> {
    match (right(record, ours), &record.open) {
        (Ok(()), None) | (Err(_), Some(_)) => Ok(()),
        (Err(problem), None) => Err(problem),
        (Ok(()), Some(_)) => Err(
            "it is answered as it should be: take its line `open` away, or run \
             `differential --close`"
                .into(),
        ),
    }
}

/// Takes the marks away of the records that are answered as they should be by now. Returns how many.
///
/// # Errors
/// Those of the files.
pub fn close(
    directory: &Path,
    mut ask: impl FnMut(&Record) -> io::Result<Ours>,
) -> io::Result<usize> {
    let mut closed = 0;
    for (path, records) in load(directory)? {
        let text = fs::read_to_string(&path)?;
        let mut lines: Vec<&str> = text.lines().collect();
        for record in records.iter().rev() {
            if record.open.is_none() || right(record, &ask(record)?).is_err() {
                continue;
            }
            let mark = lines[record.line - 1..]
                .iter()
                .take_while(|line| !line.is_empty())
                .position(|line| line.starts_with("open ="));
            if let Some(mark) = mark {
                lines.remove(record.line - 1 + mark);
                closed += 1;
            }
        }
        let text = lines.join("\n") + "\n";
        fs::write(&path, text)?;
    }
    Ok(closed)
}
