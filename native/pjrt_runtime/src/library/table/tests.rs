//! Tables in this program's own data, whole and broken.

use super::*;
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicI64;

/// Data that tables are made of. Their pointers are to constant data.
#[repr(C)]
struct Data<T>(T);

// SAFETY: the pointers are read by the tests alone, and what they point to is constant.
unsafe impl<T> Sync for Data<T> {}

unsafe extern "C" fn function(_: *mut c_void) {}

static TYPE_ID: AtomicI64 = AtomicI64::new(0);
static TYPE_INFO: Data<[*const c_void; 3]> = Data([24 as _, null(), function as *const c_void]);

const CODE: *mut c_void = function as *mut c_void;

const HANDLER: RawHandler = RawHandler {
    target: c"target".as_ptr(),
    target_size: 6,
    platform: c"Host".as_ptr(),
    platform_size: 4,
    instantiate: null_mut(),
    prepare: null_mut(),
    initialize: null_mut(),
    execute: CODE,
    traits: 0,
    reserved: 0,
    state: null(),
};

const STATE: RawState = RawState {
    struct_size: 40,
    name: c"type".as_ptr(),
    name_size: 4,
    type_id: TYPE_ID.as_ptr().cast(),
    type_info: (&raw const TYPE_INFO).cast_mut().cast(),
};

const LIBRARY: RawLibrary = RawLibrary {
    struct_size: 40,
    abi: 1,
    reserved: 0,
    handler_size: 80,
    handler_count: 1,
    handlers: null(),
};

fn read_at(address: *const c_void) -> Result<Vec<TableEntry>, String> {
    read(&Memory::now(), address, |target| {
        format!("{target:?} of a test")
    })
}

/// Reads a table whose values are in statics: of a head, and of the one handler it has.
macro_rules! table {
    ({ $($head:tt)* }, { $($handler:tt)* }, { $($state:tt)* }) => {{
        #[allow(clippy::needless_update)]
        static STATES: Data<RawState> = Data(RawState { $($state)* ..STATE });
        #[allow(clippy::needless_update)]
        static HANDLERS: Data<RawHandler> = Data(RawHandler {
            $($handler)*
            ..RawHandler { state: (&raw const STATES).cast(), ..HANDLER }
        });
        #[allow(clippy::needless_update)]
        static TABLE: Data<RawLibrary> = Data(RawLibrary {
            $($head)*
            ..RawLibrary { handlers: (&raw const HANDLERS).cast(), ..LIBRARY }
        });
        read_at((&raw const TABLE).cast())
    }};
}

#[test]
fn a_whole_table_is_read() {
    let entries = table!({}, { instantiate: CODE, traits: 1, }, {}).unwrap();
    assert_eq!(entries.len(), 1);
    let TableEntry {
        target,
        platform,
        stages,
    } = &entries[0];
    assert_eq!(
        (target.as_slice(), platform.as_str()),
        (&b"target"[..], "Host")
    );
    let code = CODE.addr();
    assert_eq!(stages.addresses(), [code, 0, 0, code]);
    assert_eq!(stages.traits, 1);
    assert_eq!(format!("{:?}", stages.state), "Some(StateType(type))");
    assert_eq!(
        format!("{:?}", stages.execute),
        "Handler(\"target\" of a test)"
    );
}

#[test]
fn a_table_may_be_empty() {
    static EMPTY: Data<RawLibrary> = Data(RawLibrary {
        handler_count: 0,
        ..LIBRARY
    });
    assert!(read_at((&raw const EMPTY).cast()).unwrap().is_empty());
}

#[test]
fn names_are_any_bytes() {
    let entries = table!({}, { target: c"\xff\x01".as_ptr(), target_size: 3, }, {}).unwrap();
    assert_eq!(entries[0].target, [0xff, 1, 0]);
}

#[test]
fn a_later_version_may_have_more_members() {
    #[repr(C)]
    struct Later {
        handler: RawHandler,
        more: [usize; 2],
    }
    const LATER: Later = Later {
        handler: HANDLER,
        more: [7; 2],
    };
    const SECOND: Later = Later {
        handler: RawHandler {
            target_size: 3,
            ..HANDLER
        },
        ..LATER
    };
    static HANDLERS: Data<[Later; 2]> = Data([LATER, SECOND]);
    static TABLE: Data<(RawLibrary, usize)> = Data((
        RawLibrary {
            struct_size: 48,
            handler_size: 96,
            handler_count: 2,
            handlers: (&raw const HANDLERS).cast(),
            ..LIBRARY
        },
        7,
    ));
    let entries = read_at((&raw const TABLE.0 .0).cast()).unwrap();
    let targets: Vec<_> = entries
        .iter()
        .map(|entry| entry.target.as_slice())
        .collect();
    assert_eq!(targets, [&b"target"[..], b"tar"]);
}

#[test]
fn a_broken_head_is_told() {
    let error = |outcome: Result<Vec<TableEntry>, String>| outcome.unwrap_err();
    assert_eq!(
        error(table!({ struct_size: 39, }, {}, {})),
        "its struct_size is 39, expected 40 or a little more"
    );
    assert_eq!(
        error(table!({ struct_size: usize::MAX, }, {}, {})),
        format!(
            "its struct_size is {}, expected 40 or a little more",
            usize::MAX
        )
    );
    assert_eq!(
        error(table!({ abi: 2, }, {}, {})),
        "it is of version 2 of the table's layout, and version 1 is read here"
    );
    for wrong in [
        table!({ handler_size: 72, }, {}, {}),
        table!({ handler_size: 84, }, {}, {}),
        table!({ handler_size: usize::MAX, }, {}, {}),
    ] {
        let wrong = error(wrong);
        assert!(wrong.starts_with("its handler_size is "), "{wrong}");
        assert!(wrong.ends_with(", expected 80 or a little more"), "{wrong}");
    }
    assert_eq!(
        error(table!({ handler_count: 65_537, }, {}, {})),
        "it has 65537 handlers, more than 65536"
    );
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn addresses_that_point_nowhere_are_told() {
    const NOWHERE: *const c_void = 0x10 as _;
    let error = |outcome: Result<Vec<TableEntry>, String>| outcome.unwrap_err();
    assert_eq!(
        error(read_at(NOWHERE)),
        "the table is at 0x10, where no data is"
    );
    assert_eq!(
        error(read_at(
            (&raw const LIBRARY_BYTES).wrapping_byte_add(1).cast()
        )),
        format!(
            "the table is at {:?}, where no data is",
            (&raw const LIBRARY_BYTES).wrapping_byte_add(1)
        )
    );
    for (wrong, expected) in [
        (
            table!({ handlers: NOWHERE, }, {}, {}),
            "the handler's description is at 0x10, where no data is",
        ),
        (
            table!({ handlers: null(), }, {}, {}),
            "the handler's description is at 0x0, where no data is",
        ),
        (
            table!({}, { target: NOWHERE.cast(), }, {}),
            "the target is at 0x10, where no data is",
        ),
        (
            table!({}, { target: null(), }, {}),
            "the target is at 0x0, where no data is",
        ),
        (
            table!({}, { platform: null(), }, {}),
            "the platform is at 0x0, where no data is",
        ),
        (
            table!({}, { execute: NOWHERE.cast_mut(), }, {}),
            "execute is 0x10, where no code is",
        ),
        (
            table!({}, { prepare: NOWHERE.cast_mut(), }, {}),
            "prepare is 0x10, where no code is",
        ),
        (
            table!({}, { state: NOWHERE, }, {}),
            "state: its description is at 0x10, where no data is",
        ),
        (
            table!({}, {}, { name: NOWHERE.cast(), }),
            "state: the name is at 0x10, where no data is",
        ),
        (
            table!({}, {}, { type_id: null_mut(), }),
            "state: type_id: 0x0 is no place for a type's id",
        ),
        (
            table!({}, {}, { type_info: NOWHERE.cast_mut(), }),
            "state: type_info: 0x10 is no XLA_FFI_TypeInfo with a deleter",
        ),
    ] {
        assert_eq!(error(wrong), format!("handler 0 of 1: {expected}"));
    }
    // A type's id that cannot be written to, and an info whose deleter is no function.
    let wrong = error(table!({}, {}, { type_id: (&raw const LIBRARY_BYTES).cast_mut().cast(), }));
    assert!(wrong.ends_with(" is no place for a type's id"), "{wrong}");
    static NO_DELETER: Data<[usize; 3]> = Data([24, 0, 0]);
    let wrong = error(table!({}, {}, { type_info: (&raw const NO_DELETER).cast_mut().cast(), }));
    assert!(wrong.ends_with("with a deleter"), "{wrong}");
}

static LIBRARY_BYTES: [usize; 8] = [0; 8];

#[test]
fn lengths_are_bounded() {
    let error = |outcome: Result<Vec<TableEntry>, String>| outcome.unwrap_err();
    for (wrong, expected) in [
        (
            table!({}, { target_size: 0, }, {}),
            "the target has 0 bytes, expected 1 to 65536",
        ),
        (
            table!({}, { target_size: 65_537, }, {}),
            "the target has 65537 bytes, expected 1 to 65536",
        ),
        (
            table!({}, { platform_size: 257, }, {}),
            "the platform has 257 bytes, expected 1 to 256",
        ),
        (
            table!({}, { platform_size: 5, }, {}),
            "the platform \"Host\\x00\" is no name of printable ASCII characters",
        ),
        (
            table!({}, {}, { name_size: usize::MAX, }),
            "state: the name has 18446744073709551615 bytes, expected 1 to 4096",
        ),
        (
            table!({}, {}, { struct_size: 32, }),
            "state: its struct_size is 32, expected 40 or more",
        ),
        (
            table!({}, { execute: null_mut(), }, {}),
            "there is no function for the execute stage",
        ),
    ] {
        assert_eq!(error(wrong), format!("handler 0 of 1: {expected}"));
    }
}

#[test]
fn a_target_is_there_once_for_a_platform() {
    const LOWER: RawHandler = RawHandler {
        platform: c"host".as_ptr(),
        ..HANDLER
    };
    const CUDA: RawHandler = RawHandler {
        platform: c"CUDA".as_ptr(),
        ..HANDLER
    };
    static HANDLERS: Data<[RawHandler; 3]> = Data([HANDLER, CUDA, LOWER]);
    static TABLE: Data<RawLibrary> = Data(RawLibrary {
        handler_count: 3,
        handlers: (&raw const HANDLERS).cast(),
        ..LIBRARY
    });
    assert_eq!(
        read_at((&raw const TABLE).cast()).unwrap_err(),
        "handler 2 of 3: target \"target\" is there twice for platform host"
    );
}
