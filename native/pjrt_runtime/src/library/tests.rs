//! Libraries of this system, and some in C that are built here with `include/exla_custom_call.h`.

use super::*;
use crate::test_support::{client, libm_path, scratch};
use crate::{CompileOptions, ElementType, HostInput};
use std::process::Command;

#[test]
fn a_library_loads_once() {
    let first = Library::load(&libm_path()).unwrap();
    assert!(std::ptr::eq(first, Library::load(&libm_path()).unwrap()));
}

#[test]
fn a_missing_library_is_named() {
    assert_eq!(
        Library::load(Path::new("/nowhere/kernels.so"))
            .unwrap_err()
            .to_string(),
        "no handler library at /nowhere/kernels.so: there is no such file"
    );
}

#[test]
fn a_text_file_is_no_library() {
    let path = scratch("kernels.so", b"int main() {}\n");
    let error = Library::load(&path).unwrap_err();
    assert!(matches!(error, Error::NotASharedObject { .. }), "{error}");
}

#[test]
fn a_missing_symbol_is_named() {
    let library = Library::load(&libm_path()).unwrap();
    let error = library.handler("no_such_handler").unwrap_err();
    assert!(
        matches!(&error, Error::SymbolMissing { symbol, reason, .. }
            if symbol == "no_such_handler" && reason.contains("no_such_handler")),
        "{error}"
    );
}

#[test]
fn names_that_no_symbol_can_have_are_missing() {
    let library = Library::load(&libm_path()).unwrap();
    for name in ["", "a\0b"] {
        let error = library.handler(name).unwrap_err();
        assert!(matches!(error, Error::SymbolMissing { .. }), "{error}");
    }
}

#[test]
fn a_library_of_others_has_no_table() {
    let library = Library::load(&libm_path()).unwrap();
    assert!(library.handlers().unwrap().is_none());
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn data_is_no_handler() {
    let library = Library::load(&libm_path()).unwrap();
    let error = library.handler("signgam").unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the symbol is data, not a function"),
        "{error}"
    );
    assert!(library.handler("cos").is_ok());
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn a_function_of_another_library_is_no_handler() {
    let library = Library::load(&libm_path()).unwrap();
    let error = library.handler("exit").unwrap_err().to_string();
    assert!(
        error.contains("the library does not define it, but "),
        "{error}"
    );
    assert!(error.ends_with(" does, which it depends on"), "{error}");
}

/// As much of `xla/ffi/api/c_api.h` as a handler in C needs that adds 1, or something else, to two floats.
const C_API: &str = r"
#ifndef C_API_H_
#define C_API_H_
#include <stddef.h>
#include <stdint.h>
typedef struct XLA_FFI_Error XLA_FFI_Error;
typedef struct XLA_FFI_TypeId { int64_t type_id; } XLA_FFI_TypeId;
typedef struct Version { size_t struct_size; void* next; int major_version; int minor_version; } Version;
typedef struct Metadata { size_t struct_size; Version version; uint32_t traits; } Metadata;
typedef struct Extension { size_t struct_size; int type; void* next; Metadata* metadata; } Extension;
typedef struct Buffer { size_t struct_size; void* next; int dtype; void* data; } Buffer;
typedef struct Buffers { size_t struct_size; void* next; int64_t size; int* types; Buffer** buffers; } Buffers;
typedef struct XLA_FFI_CallFrame {
  size_t struct_size; Extension* extension; const void* api; void* ctx; int stage; Buffers args; Buffers rets;
} XLA_FFI_CallFrame;
typedef XLA_FFI_Error* XLA_FFI_Handler(XLA_FFI_CallFrame* call_frame);
#endif
";

const HANDLER: &str = r#"
#include "exla_custom_call.h"
#ifndef PLUS
#define PLUS 1
#endif
static XLA_FFI_Error* add(XLA_FFI_CallFrame* frame) {
  if (frame->extension != NULL) {
    frame->extension->metadata->version.major_version = 0;
    frame->extension->metadata->version.minor_version = 1;
    return NULL;
  }
  for (int i = 0; i < 2; ++i) {
    ((float*)frame->rets.buffers[0]->data)[i] = ((float*)frame->args.buffers[0]->data)[i] + PLUS;
  }
  return NULL;
}
"#;

/// Builds a library of C11, with all warnings as errors.
fn build(name: &str, source: &str, flags: &[&str]) -> &'static Library {
    let directory = scratch(&format!("{name}.c"), source.as_bytes());
    let directory = directory.parent().unwrap();
    let api = directory.join("xla/ffi/api");
    std::fs::create_dir_all(&api).unwrap();
    // Tests run in parallel, and the compiler of one reads what another writes.
    let complete = directory.join(format!("{name}.c_api.h"));
    std::fs::write(&complete, C_API).unwrap();
    std::fs::rename(complete, api.join("c_api.h")).unwrap();
    let path = directory.join(format!("lib{name}.so"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(
            "-shared -fPIC -std=c11 -Wall -Wextra -Wpedantic -Werror -fvisibility=hidden"
                .split(' '),
        )
        .args(flags)
        .arg("-I")
        .arg(include)
        .arg("-I")
        .arg(directory)
        .arg("-o")
        .arg(&path)
        .arg(directory.join(format!("{name}.c")))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Library::load(&path).unwrap()
}

fn call(target: &str) -> Result<Vec<f32>, Error> {
    let program = format!(
        "func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
           %0 = \"stablehlo.custom_call\"(%arg0) {{call_target_name = \"{target}\", api_version = 4 : i32}}
             : (tensor<2xf32>) -> tensor<2xf32>
           return %0 : tensor<2xf32>
         }}"
    );
    let executable = client().compile(program.as_bytes(), &CompileOptions::default())?;
    let data: Vec<u8> = [1.0f32, 2.0]
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    let outputs = executable.run(&[HostInput {
        data: &data,
        element_type: ElementType::F32,
        dimensions: &[2],
    }])?;
    let value = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
    Ok(outputs[0].chunks(4).map(value).collect())
}

#[test]
fn a_library_with_a_table_needs_no_names() {
    let source = format!(
        "{HANDLER}
        EXLA_CUSTOM_CALL_LIBRARY(
          EXLA_CUSTOM_CALL_HANDLER(\"c.add\", \"Host\", add),
          EXLA_CUSTOM_CALL_HANDLER(\"c.add.too\", \"cpu\", add),
          EXLA_CUSTOM_CALL_STAGES(\"c.add.stages\", \"host\", NULL, add, add, add, 0, NULL),
          EXLA_CUSTOM_CALL_HANDLER(\"c.add\", \"CUDA\", add));"
    );
    let library = build("table", &source, &[]);
    let targets = [&b"c.add"[..], b"c.add.too", b"c.add.stages"];
    assert_eq!(client().register_library(library).unwrap(), targets);
    assert_eq!(client().register_library(library).unwrap(), targets);
    for target in ["c.add", "c.add.too", "c.add.stages"] {
        assert_eq!(call(target), Ok(vec![2.0, 3.0]));
    }
}

#[test]
fn two_libraries_that_claim_a_target_are_both_named() {
    let source = |own: &str| {
        format!(
            "{HANDLER}
            EXLA_CUSTOM_CALL_LIBRARY(
              EXLA_CUSTOM_CALL_HANDLER(\"{own}\", \"Host\", add),
              EXLA_CUSTOM_CALL_HANDLER(\"c.claimed\", \"Host\", add));"
        )
    };
    let first = build("first", &source("c.first"), &["-DPLUS=1"]);
    let second = build("second", &source("c.second"), &["-DPLUS=2"]);
    client().register_library(first).unwrap();
    assert_eq!(
        client().register_library(second).unwrap_err().to_string(),
        format!(
            "target \"c.claimed\" already has a handler on platform Host, \"c.claimed\" of {}, and cannot \
             have \"c.claimed\" of {}: a process keeps the first one, choose another target name",
            first.path().display(),
            second.path().display()
        )
    );
    assert_eq!(call("c.claimed"), Ok(vec![2.0, 3.0]));
    let error = call("c.second").unwrap_err();
    assert!(error.to_string().contains("c.second"), "{error}");
}

#[test]
fn a_library_for_another_platform_has_nothing_here() {
    let source = format!(
        "{HANDLER}
        EXLA_CUSTOM_CALL_LIBRARY(
          EXLA_CUSTOM_CALL_HANDLER(\"c.cuda\", \"ROCM\", add),
          EXLA_CUSTOM_CALL_HANDLER(\"c.cuda\", \"CUDA\", add));"
    );
    let library = build("cuda", &source, &[]);
    assert_eq!(
        client().register_library(library).unwrap_err().to_string(),
        format!(
            "{} has no handler for platform Host, only for CUDA, ROCM",
            library.path().display()
        )
    );
}

#[test]
fn a_library_without_a_table_is_told_what_to_do() {
    let library = Library::load(&libm_path()).unwrap();
    assert_eq!(
        client().register_library(library).unwrap_err().to_string(),
        format!(
            "{} exports no table of its handlers: give the names of the handlers to register, or export the table \
             with xla_ffi::library! in Rust or include/exla_custom_call.h in C and C++",
            library.path().display()
        )
    );
}

#[test]
fn a_broken_table_is_an_error() {
    let visible = "__attribute__((visibility(\"default\")))";
    let broken = |name: &str, source: &str| {
        let library = build(name, source, &[]);
        let error = client().register_library(library).unwrap_err().to_string();
        let prefix = format!(
            "the table of handlers that {} exports is broken: ",
            library.path().display()
        );
        error.strip_prefix(&prefix).unwrap_or(&error).to_owned()
    };
    assert_eq!(
        broken(
            "broken_pointer",
            &format!("{visible} const unsigned long exla_custom_call_library[] = {{40, 1, 80, 3, 4096}};")
        ),
        "handler 0 of 3: the handler's description is at 0x1000, where no data is"
    );
    // Data that is no table, and the code of a function.
    for (name, source) in [
        (
            "broken_text",
            "const char exla_custom_call_library[] = \"no table\";",
        ),
        (
            "broken_function",
            "int exla_custom_call_library(void); int exla_custom_call_library(void) { return 1; }",
        ),
    ] {
        let error = broken(name, &format!("{visible} {source}"));
        assert!(
            ["its struct_size is ", "the table is at "]
                .iter()
                .any(|start| error.starts_with(start)),
            "{error}"
        );
    }
}

#[test]
fn a_type_by_its_symbols() {
    let source = r#"
#include <stddef.h>
#define EXPORT __attribute__((visibility("default")))
static void delete_state(void* state) { (void)state; }
static long id;
static const struct { size_t size; void* next; void (*deleter)(void*); } info = {24, NULL, delete_state};
EXPORT void* type_id(void);
EXPORT const void* type_info(void);
EXPORT void* nothing(void);
void* type_id(void) { return &id; }
const void* type_info(void) { return &info; }
void* nothing(void) { return NULL; }
"#;
    let library = build("types", source, &[]);
    let state = library
        .state_type("c.Type", "type_id", "type_info")
        .unwrap();
    assert_eq!(format!("{state:?}"), "StateType(c.Type)");
    let message = |id: &str, info: &str| {
        let error = library
            .state_type("c.Type", id, info)
            .unwrap_err()
            .to_string();
        error.replace(&library.path().display().to_string(), "LIB")
    };
    assert_eq!(
        message("nothing", "type_info"),
        "LIB has no handler function \"nothing\": 0x0 is no place for a type's id"
    );
    assert_eq!(
        message("type_id", "nothing"),
        "LIB has no handler function \"nothing\": 0x0 is no XLA_FFI_TypeInfo with a deleter"
    );
}
