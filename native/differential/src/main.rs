//! The tool; `differential --help` says how it is used.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use differential::checker::{self, Checker, Ours};
use differential::judge::Class;
use differential::plugin::Theirs;
use differential::record::{parse_all, Record};
use differential::report::{one_line, Found, Tally};
use differential::session::{installed_plugins, Answers, Programs, Session};
use differential::{corpus, generate, shrink};

const HELP: &str = "\
Asks the package's checker and XLA about the same custom calls and compares the answers.

  differential                 a run of generated cases on every installed plugin
    --cases N                  how many (100000)
    --seed N                   another run (1)
    --seconds N                stop after so long, whatever is left
    --jobs N                   in so many sessions at a time (2)
    --shrink N                 questions to make each class's example smaller (100)
    --report FILE              write the report there too
  differential --only INDEX    one case of a run, and what everyone says
  differential --ask FILE      the records of a file, and what everyone says; - is standard input
  differential --record FILE   the records of a file, with what everyone says written into them
  differential --corpus DIR    the corpus, against the checker and the plugins
  differential --close DIR     take the marks of open records away that are answered rightly

    --plugin FILE              a plugin; several times for several (those in the user's cache)
    --worker FILE              the worker (exla_custom_call_worker beside this program)

The exit status is 1 where a promise is broken: see the library's documentation.";

/// The argument with which this program is a checker for another one of it.
const CHECKER: &str = "--checker";

struct Options {
    cases: u64,
    seed: u64,
    seconds: Option<u64>,
    jobs: usize,
    shrink: usize,
    report: Option<PathBuf>,
    only: Option<u64>,
    ask: Option<PathBuf>,
    record: Option<PathBuf>,
    corpus: Option<PathBuf>,
    close: Option<PathBuf>,
    programs: Programs,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == CHECKER) {
        return match checker::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    arguments.reverse();
    match options(arguments).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("differential: {error}");
            ExitCode::from(2)
        }
    }
}

/// Reads the arguments, the last one first.
fn options(mut arguments: Vec<String>) -> Outcome<Options> {
    let program = std::env::current_exe()?;
    let mut options = Options {
        cases: 100_000,
        seed: 1,
        seconds: None,
        jobs: 2,
        shrink: 100,
        report: None,
        only: None,
        ask: None,
        record: None,
        corpus: None,
        close: None,
        programs: Programs {
            worker: program.with_file_name("exla_custom_call_worker"),
            checker: (program, CHECKER),
            plugins: Vec::new(),
        },
    };
    while let Some(name) = arguments.pop() {
        let value = arguments
            .pop()
            .ok_or_else(|| format!("{name} needs a value; see --help"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{name} is a number, not {value:?}"))
        };
        match name.as_str() {
            "--cases" => options.cases = number()?,
            "--seed" => options.seed = number()?,
            "--seconds" => options.seconds = Some(number()?),
            "--jobs" => options.jobs = number()?.clamp(1, 2) as usize,
            "--shrink" => options.shrink = number()? as usize,
            "--report" => options.report = Some(value.into()),
            "--only" => options.only = Some(number()?),
            "--ask" => options.ask = Some(value.into()),
            "--record" => options.record = Some(value.into()),
            "--corpus" => options.corpus = Some(value.into()),
            "--close" => options.close = Some(value.into()),
            "--plugin" => options.programs.plugins.push(value.into()),
            "--worker" => options.programs.worker = value.into(),
            _ => return Err(format!("there is no option {name}; see --help").into()),
        }
    }
    if options.programs.plugins.is_empty() {
        options.programs.plugins = installed_plugins();
    }
    Ok(options)
}

/// Does what was asked for. False where a promise is broken.
fn run(options: &Options) -> Outcome<bool> {
    if let Some(directory) = &options.close {
        return close(options, directory);
    }
    if options.programs.plugins.is_empty() {
        return Err("there is no plugin: run `make plugin`, or name one with --plugin".into());
    }
    if let Some(directory) = &options.corpus {
        return replay(options, directory);
    }
    if let Some(index) = options.only {
        let mut session = Session::start(&options.programs)?;
        let case = generate::case(options.seed, index);
        show(&mut session, &Record::of(&case))?;
        return Ok(true);
    }
    let (path, answer): (_, fn(&mut Session, Record) -> Outcome<()>) =
        match (&options.ask, &options.record) {
            (Some(path), _) => (path, |session, record| show(session, &record)),
            (None, Some(path)) => (path, complete),
            (None, None) => return compare(options),
        };
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin())?
    } else {
        fs::read_to_string(path)?
    };
    let mut session = Session::start(&options.programs)?;
    for record in parse_all(&text)? {
        answer(&mut session, record)?;
    }
    Ok(true)
}

/// Prints a case and what everyone says of it.
fn show(session: &mut Session, record: &Record) -> Outcome<()> {
    let answers = session.ask(&record.case)?;
    print!("{}", Record::of(&record.case).to_text());
    match &answers.ours {
        Ours::Accepts { .. } => println!("# the package accepts"),
        Ours::Refuses { message, .. } => println!("# the package refuses: {message}"),
        Ours::Dies { cause, stderr } => println!("# the checker dies: {cause} {stderr:?}"),
        Ours::Hangs => println!("# the checker hangs"),
    }
    match &answers.theirs {
        Ok(theirs) => {
            for (version, theirs) in session.versions().iter().zip(theirs) {
                println!(
                    "# plugin {version} {}: {}",
                    theirs.word(),
                    theirs.message().trim()
                );
            }
        }
        Err(reason) => println!("# the plugins are not asked: {reason}"),
    }
    println!("# {:?}\n", answers.verdict());
    Ok(())
}

/// Prints a record with what the plugins do, and with the verdict that follows from it unless it has
/// one. It is marked `open` where the package answers in another way.
fn complete(session: &mut Session, mut record: Record) -> Outcome<()> {
    let answers = session.ask(&record.case)?;
    if let Ok(theirs) = &answers.theirs {
        let versions = session.versions().into_iter();
        record.plugins = versions
            .zip(theirs.iter().map(|theirs| one_line(&theirs.line())))
            .collect();
        let accept = theirs.iter().all(|theirs| *theirs == Theirs::Accepts);
        record.accept.get_or_insert(accept);
    }
    let is_right = corpus::right(&record, &answers.ours).is_ok();
    record.open = (!is_right).then(|| record.open.unwrap_or_else(|| "no rule yet".into()));
    println!("{}", record.to_text());
    Ok(())
}

fn close(options: &Options, directory: &Path) -> Outcome<bool> {
    let (program, argument) = &options.programs.checker;
    let mut checker = Checker::new(program.clone(), argument);
    let closed = corpus::close(directory, |record| checker.ask(&record.case))?;
    println!("{closed} records are no longer open");
    Ok(true)
}

/// Asks about the corpus: the package has to answer as the records say, and the plugins to behave so.
fn replay(options: &Options, directory: &Path) -> Outcome<bool> {
    let mut session = Session::start(&options.programs)?;
    let versions = session.versions();
    let (mut count, mut problems) = (0, 0);
    for (path, records) in corpus::load(directory)? {
        for record in records {
            count += 1;
            let answers = session.ask(&record.case)?;
            let mut found = Vec::new();
            if let Err(problem) = corpus::check(&record, &answers.ours) {
                found.push(format!("verdict {:?}, but {problem}", record.accept));
            }
            found.extend(surprises(&record, &versions, &answers));
            problems += found.len();
            for problem in found {
                println!("{}:{}: {problem}", path.display(), record.line);
            }
        }
    }
    println!("{count} records, {problems} problems");
    Ok(problems == 0)
}

/// Where plugins behave in another way than a record says.
fn surprises(record: &Record, versions: &[String], answers: &Answers) -> Vec<String> {
    let Ok(theirs) = &answers.theirs else {
        return Vec::new();
    };
    let mut surprises = Vec::new();
    for (version, theirs) in versions.iter().zip(theirs) {
        let expected = record.plugins.iter().find(|(known, _)| known == version);
        let Some((_, expected)) = expected else {
            continue;
        };
        let word = expected.split(':').next().unwrap_or_default();
        // Bytecode and text are verified at different times, and of time and memory either may be the
        // first to run out.
        let alike =
            |beginning: &str| word.starts_with(beginning) && theirs.word().starts_with(beginning);
        let same = word == theirs.word() || alike("refuses") || alike("takes");
        if !same {
            surprises.push(format!(
                "plugin {version} {word}, says the record, but it {}",
                theirs.line()
            ));
        }
    }
    surprises
}

/// A run of generated cases.
fn compare(options: &Options) -> Outcome<bool> {
    let start = Instant::now();
    let deadline = options
        .seconds
        .map(|seconds| start + Duration::from_secs(seconds));
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Tally::default());
    let versions = Session::start(&options.programs)?.versions();
    eprintln!(
        "{} cases of seed {} on plugins {}",
        options.cases,
        options.seed,
        versions.join(" and ")
    );
    in_sessions(options, |session| {
        let mut tally = Tally::default();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= options.cases || deadline.is_some_and(|at| Instant::now() > at) {
                break;
            }
            if index.is_multiple_of(5000) && index > 0 {
                eprintln!("{index} cases after {} s", start.elapsed().as_secs());
            }
            let case = generate::case(options.seed, index);
            let answers = session
                .ask_twice(&case)
                .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            tally.add(index, case, answers);
        }
        lock(&total).merge(tally);
        Ok(())
    })?;
    let asked = next.load(Ordering::Relaxed).min(options.cases);
    let elapsed = start.elapsed();
    let mut tally = std::mem::take(&mut *lock(&total));
    let report = |tally: &Tally| {
        format!(
            "{asked} cases of seed {} on plugins {} in {:.0} s, {:.0} a second\n{}",
            options.seed,
            versions.join(" and "),
            elapsed.as_secs_f64(),
            asked as f64 / elapsed.as_secs_f64(),
            tally.report(&versions)
        )
    };
    if let Some(path) = &options.report {
        fs::write(path, report(&tally))?;
    }
    shrink_all(
        options,
        &mut tally,
        Instant::now() + elapsed.max(SHORTEST_SHRINKING),
    )?;
    let report = report(&tally);
    println!("{report}");
    if let Some(path) = &options.report {
        fs::write(path, &report)?;
    }
    Ok(tally.faults() == 0)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Does the same in several sessions at a time.
fn in_sessions<F>(options: &Options, work: F) -> Outcome<()>
where
    F: Fn(&mut Session) -> Result<(), differential::session::Error> + Sync,
{
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                let done =
                    Session::start(&options.programs).and_then(|mut session| work(&mut session));
                if let Err(error) = done {
                    *lock(&failed) = Some(error);
                }
            });
        }
    });
    let failed = lock(&failed).take();
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Making examples smaller takes as long as the run did at most, and so long at least.
const SHORTEST_SHRINKING: Duration = Duration::from_secs(30);

/// Makes the example of each class smaller, of the faults and of the most frequent ones first, as long
/// as there is time.
fn shrink_all(options: &Options, tally: &mut Tally, deadline: Instant) -> Outcome<()> {
    let mut classes: Vec<(Class, Found)> = std::mem::take(&mut tally.classes).into_iter().collect();
    classes.sort_by_key(|(class, found)| (!class.kind.is_fault(), usize::MAX - found.count));
    eprintln!("{} classes to make smaller", classes.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    in_sessions(options, |session| {
        while let Some((class, found)) = classes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut found = found.clone();
            let example = &mut found.example;
            let is_slow = class
                .theirs
                .iter()
                .any(|theirs| theirs.starts_with("takes"));
            let asks = match Instant::now() < deadline {
                true if is_slow => options.shrink / 10,
                true => options.shrink,
                false => 0,
            };
            let case = shrink::shrink(session, &example.case, class, asks)?;
            if case != example.case {
                example.answers = session.ask(&case)?;
                example.case = case;
            }
            lock(&done).push((class.clone(), found));
        }
        Ok(())
    })?;
    tally.classes = std::mem::take(&mut *lock(&done)).into_iter().collect();
    Ok(())
}
