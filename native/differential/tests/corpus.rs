//! The corpus, against the checker alone. `make differential-short` asks the plugins about it too.

use std::path::Path;

use differential::{checker, corpus};

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

#[test]
fn the_package_answers_every_record_as_it_should() {
    let mut problems = Vec::new();
    for (path, records) in corpus::load(&directory()).unwrap() {
        for record in records {
            if let Err(problem) = corpus::check(&record, &checker::check(&record.case)) {
                problems.push(format!("{}:{}: {problem}", path.display(), record.line));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_record_says_what_is_right_and_what_the_plugins_do() {
    for (path, records) in corpus::load(&directory()).unwrap() {
        assert!(!records.is_empty(), "{}", path.display());
        for record in records {
            let at = format!("{}:{}", path.display(), record.line);
            assert!(record.accept.is_some(), "{at}");
            let versions: Vec<_> = record.plugins.iter().map(|(version, _)| version).collect();
            assert_eq!(versions, ["0.115", "0.106"], "{at}");
        }
    }
}

#[test]
fn no_record_is_there_twice() {
    let mut seen = Vec::new();
    for (path, records) in corpus::load(&directory()).unwrap() {
        for record in records {
            assert!(
                !seen.contains(&record.case),
                "{}:{}",
                path.display(),
                record.line
            );
            seen.push(record.case);
        }
    }
}
