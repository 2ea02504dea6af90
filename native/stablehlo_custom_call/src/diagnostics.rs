use crate::sink::collect;
use mlir_sys::{
    mlirContextAttachDiagnosticHandler, mlirDiagnosticGetLocation, mlirDiagnosticGetNote,
    mlirDiagnosticGetNumNotes, mlirDiagnosticPrint, mlirLocationPrint, MlirContext, MlirDiagnostic,
    MlirLogicalResult,
};
use std::{cell::RefCell, ffi::c_void};

/// One message of MLIR, with its place in the text that was parsed.
#[derive(Clone, Debug)]
pub(crate) struct Diagnostic {
    pub message: String,
    pub line: usize,
    pub column: usize,
}

/// What MLIR said since the last [`take`](Diagnostics::take).
///
/// A handler belongs to a context and not to a thread, so there is one a context, attached for the
/// context's whole life: without it MLIR would print to the terminal.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    messages: RefCell<Vec<Diagnostic>>,
}

/// More than this many messages of one parse tell nobody anything.
const MOST_MESSAGES: usize = 16;
const LONGEST_MESSAGE: usize = 400;

impl Diagnostics {
    /// # Safety
    /// `self` must not move and must outlive the context.
    pub(crate) unsafe fn attach(&self, context: MlirContext) {
        // SAFETY: the caller keeps `self` in place for as long as the context can call back.
        unsafe {
            mlirContextAttachDiagnosticHandler(
                context,
                Some(handle),
                (&raw const *self).cast_mut().cast(),
                None,
            );
        }
    }

    pub(crate) fn take(&self) -> Vec<Diagnostic> {
        self.messages.take()
    }

    /// All messages in one line, or `otherwise` when MLIR said nothing.
    pub(crate) fn take_text(&self, otherwise: &str) -> String {
        let messages: Vec<String> = self.take().into_iter().map(|d| d.message).collect();
        if messages.is_empty() {
            otherwise.to_owned()
        } else {
            messages.join("; ")
        }
    }
}

unsafe extern "C" fn handle(diagnostic: MlirDiagnostic, this: *mut c_void) -> MlirLogicalResult {
    // SAFETY: `attach` passed a `Diagnostics` that outlives the context, and MLIR calls from the
    // thread that holds the context's lock, so nothing else borrows it.
    unsafe {
        let this = &*this.cast::<Diagnostics>();
        if let Ok(mut messages) = this.messages.try_borrow_mut() {
            if messages.len() < MOST_MESSAGES {
                messages.push(read(diagnostic));
            }
        }
    }
    // Handled: MLIR prints nothing itself.
    MlirLogicalResult { value: 1 }
}

/// # Safety
/// `diagnostic` must be live, as it is inside a handler.
unsafe fn read(diagnostic: MlirDiagnostic) -> Diagnostic {
    // SAFETY: the diagnostic, its notes and its location live until the handler returns.
    let (mut message, location) = unsafe {
        let mut message = print_message(diagnostic);
        for index in 0..mlirDiagnosticGetNumNotes(diagnostic) {
            let note = print_message(mlirDiagnosticGetNote(diagnostic, index));
            // The whole operation, constants and all.
            if !note.starts_with("see current operation") {
                message.push_str(&format!(" ({note})"));
            }
        }
        let location = mlirDiagnosticGetLocation(diagnostic);
        (
            message,
            collect(|callback, data| mlirLocationPrint(location, Some(callback), data)),
        )
    };
    if message.len() > LONGEST_MESSAGE {
        let end = message.floor_char_boundary(LONGEST_MESSAGE);
        message.truncate(end);
        message.push_str("...");
    }
    let (line, column) = line_and_column(&location).unwrap_or((1, 1));
    Diagnostic {
        message,
        line,
        column,
    }
}

/// # Safety
/// `diagnostic` must be live.
unsafe fn print_message(diagnostic: MlirDiagnostic) -> String {
    // SAFETY: the caller guarantees a live diagnostic.
    let bytes =
        collect(|callback, data| unsafe { mlirDiagnosticPrint(diagnostic, Some(callback), data) });
    String::from_utf8_lossy(&bytes).into_owned()
}

/// MLIR 19 has no C function that takes a location apart; it prints as `loc("file":line:column)`,
/// where the file name of a parsed text is the text itself.
fn line_and_column(location: &[u8]) -> Option<(usize, usize)> {
    let inner = location.strip_suffix(b")")?;
    let mut parts = inner.rsplitn(3, |&byte| byte == b':');
    let column = number(parts.next()?)?;
    let line = number(parts.next()?)?;
    Some((line, column))
}

fn number(digits: &[u8]) -> Option<usize> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_from_its_end_since_its_name_is_the_parsed_text() {
        assert_eq!(
            line_and_column(br#"loc("a:7:8) \"x\":1:2)":3:14)"#),
            Some((3, 14))
        );
        assert_eq!(line_and_column(b"loc(unknown)"), None);
    }
}
