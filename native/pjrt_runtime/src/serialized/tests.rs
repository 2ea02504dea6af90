use super::*;
use crate::test_support::{client, cpu_plugin, handlers, ADD};
use crate::{CompileOptions, ElementType, ErrorCode, HostInput, NamedValue};

fn serialized() -> Vec<u8> {
    let executable = client().compile(ADD.as_bytes(), &CompileOptions::default());
    executable.unwrap().serialize().unwrap()
}

fn refusal(bytes: &[u8]) -> Refusal {
    match client().deserialize(bytes) {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_executable_comes_back_as_it_was() {
    let executable = client().deserialize(&serialized()).unwrap();
    let data: Vec<u8> = [1f32, 2.0]
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    let twice: Vec<u8> = [2f32, 4.0]
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    let input = HostInput {
        data: &data,
        element_type: ElementType::F32,
        dimensions: &[2],
    };
    assert_eq!(executable.run(&[input, input]), Ok(vec![twice]));
    assert_eq!(executable.inputs().map(<[_]>::len), Some(2));
    assert!(executable.hlo_text().unwrap().contains(" fusion("));
    let again = client()
        .deserialize(&executable.serialize().unwrap())
        .unwrap();
    assert_eq!(
        again.run(&[]).unwrap_err(),
        Error::InputCount {
            expected: 2,
            found: 0
        }
    );
}

#[test]
fn every_damaged_byte_is_noticed() {
    let good = serialized();
    for index in (0..good.len()).step_by(7).chain(0..HEADER) {
        let mut bad = good.clone();
        bad[index] ^= 0x10;
        let refusal = refusal(&bad);
        let fits = match index {
            0..8 => refusal == Refusal::Foreign,
            8..12 => matches!(
                refusal,
                Refusal::Format {
                    supported: FORMAT,
                    ..
                }
            ),
            12..20 => matches!(refusal, Refusal::Length { .. }),
            _ => refusal == Refusal::Damaged,
        };
        assert!(fits, "byte {index}: {refusal}");
    }
}

#[test]
fn truncated_bytes_and_foreign_ones_are_refused() {
    let good = serialized();
    assert_eq!(refusal(b""), Refusal::Foreign);
    assert_eq!(refusal(b"\x7fELF and so on"), Refusal::Foreign);
    for len in [8, 11, 12, 19, 20, 51, 52, 100, good.len() - 1] {
        assert!(
            matches!(refusal(&good[..len]), Refusal::Length { .. }),
            "{len}"
        );
    }
    let longer = [good.as_slice(), b"x"].concat();
    assert_eq!(
        refusal(&longer).to_string(),
        format!(
            "it is {} bytes long, it should be {}",
            good.len() + 1,
            good.len()
        )
    );
}

/// A body with one text replaced by another.
fn with_text(bytes: &[u8], which: usize, text: &str) -> Vec<u8> {
    let mut reader = Reader(&bytes[HEADER..]);
    let mut body = Vec::new();
    for index in 0..7 {
        let found = reader.text().unwrap();
        put_text(&mut body, if index == which { text } else { found });
    }
    body.extend_from_slice(reader.0);
    seal(&body)
}

#[test]
fn what_was_written_elsewhere_is_refused_by_name() {
    let good = serialized();
    assert_eq!(
        refusal(&with_text(&good, 0, "0.0.1")),
        Refusal::Package {
            expected: VERSION.to_owned(),
            found: "0.0.1".to_owned()
        }
    );
    let expected = [
        "platform",
        "platform version",
        "PJRT API version",
        "plugin file",
        "kind of devices",
        "processor",
    ];
    for (index, what) in expected.into_iter().enumerate() {
        let refusal = refusal(&with_text(&good, index + 1, "another"));
        assert!(
            matches!(&refusal, Refusal::Platform { what: found, found: text, .. }
                if *found == what && text == "another"),
            "{refusal}"
        );
    }
}

#[test]
fn a_body_that_ends_early_is_refused() {
    let good = serialized();
    let body = &good[HEADER..];
    let mut reader = Reader(body);
    for _ in 0..7 {
        reader.text().unwrap();
    }
    let header = body.len() - reader.0.len();
    for len in 0..header + 8 {
        assert_eq!(refusal(&seal(&body[..len])), Refusal::Foreign, "{len}");
    }
}

#[test]
fn devices_that_the_client_lacks_are_named() {
    let options = CompileOptions {
        device_assignment: Some(vec![vec![1]]),
        ..Default::default()
    };
    let executable = client().compile(ADD.as_bytes(), &options).unwrap();
    let bytes = executable.serialize().unwrap();
    let one = [("cpu_device_count".to_owned(), NamedValue::Int64(1))];
    let small = Client::new(cpu_plugin(), &one).unwrap();
    assert_eq!(
        small.deserialize(&bytes).unwrap_err().to_string(),
        "the serialized executable is refused: it runs on devices [1], the client has [0]"
    );
    assert_eq!(client().deserialize(&bytes).unwrap().devices(), [1]);
}

#[test]
fn handlers_are_looked_up_again() {
    handlers(client());
    let program = |target: &str| {
        format!(
            "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
               %0 = stablehlo.custom_call @{target}(%a) {{api_version = 4 : i32, backend_config = {{}}}}
                 : (tensor<2xf32>) -> tensor<2xf32>
               return %0 : tensor<2xf32>
             }}"
        )
    };
    let compiled = client().compile(
        program("runtime.copy").as_bytes(),
        &CompileOptions::default(),
    );
    let bytes = compiled.unwrap().serialize().unwrap();
    assert!(client().deserialize(&bytes).is_ok());
    // The same length, so that the messages in the plugin's bytes stay whole.
    let mut body = bytes[HEADER..].to_vec();
    while let Some(at) = body.windows(12).position(|bytes| bytes == b"runtime.copy") {
        body[at..at + 12].copy_from_slice(b"runtime.none");
    }
    match client().deserialize(&seal(&body)) {
        Err(Error::Pjrt { code, message }) => {
            assert_eq!(code, ErrorCode::NotFound);
            assert!(message.contains("runtime.none"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
