use crate::{attribute, module::Module, types, types::Type};
use melior::ir::{Attribute, Type as MlirType};
use mlir_sys::{
    mlirAttributeGetType, mlirAttributeIsADictionary, mlirAttributeIsAInteger,
    mlirAttributeIsAString, mlirBlockGetFirstOperation, mlirBlockGetNextInRegion,
    mlirDictionaryAttrGetElement, mlirDictionaryAttrGetNumElements, mlirIdentifierStr,
    mlirIntegerAttrGetValueInt, mlirIntegerTypeGetWidth, mlirOperationGetAttribute,
    mlirOperationGetAttributeByName, mlirOperationGetName, mlirOperationGetNextInBlock,
    mlirOperationGetNumAttributes, mlirOperationGetNumOperands, mlirOperationGetNumRegions,
    mlirOperationGetNumResults, mlirOperationGetOperand, mlirOperationGetRegion,
    mlirOperationGetResult, mlirRegionGetFirstBlock, mlirStringAttrGetValue, mlirTypeIsAInteger,
    mlirValueGetType, MlirAttribute, MlirOperation, MlirStringRef, MlirValue,
};
use std::slice;

/// A custom call as it stands in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedCall {
    /// The function that holds it.
    pub function: Vec<u8>,
    pub call_target_name: Vec<u8>,
    pub api_version: i64,
    pub backend_config: BackendConfig,
    /// Every other attribute of the operation, by name and as MLIR prints it, sorted by name.
    pub mlir_attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub operands: Vec<EmittedType>,
    pub results: Vec<EmittedType>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendConfig {
    Absent,
    /// The string of API versions 1 to 3.
    Bytes(Vec<u8>),
    /// The dictionary of API version 4, by name and as MLIR prints it, sorted by name.
    Dictionary(Vec<(Vec<u8>, Vec<u8>)>),
}

/// A type that this package emits, or the text of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmittedType {
    Known(Type),
    Other(Vec<u8>),
}

impl Module {
    /// The custom calls that the module holds, in the order in which it is printed.
    pub fn custom_calls(&self) -> Vec<EmittedCall> {
        self.with_operation(|module| {
            let mut calls = Vec::new();
            // SAFETY: the module is live and its context locked for the closure; nothing is changed
            // while it is walked.
            unsafe {
                for function in nested(module) {
                    let name = string(attribute_named(function, b"sym_name")).unwrap_or_default();
                    // A stack of its own: regions nest, and a thread's stack may be small.
                    let mut pending = nested(function);
                    pending.reverse();
                    while let Some(operation) = pending.pop() {
                        if bytes(mlirIdentifierStr(mlirOperationGetName(operation)))
                            == b"stablehlo.custom_call"
                        {
                            calls.push(read(operation, &name));
                        }
                        pending.extend(nested(operation).into_iter().rev());
                    }
                }
            }
            calls
        })
    }
}

/// The operations directly inside an operation's regions, in order.
///
/// # Safety
/// `operation` must be live and its context locked.
unsafe fn nested(operation: MlirOperation) -> Vec<MlirOperation> {
    let mut operations = Vec::new();
    // SAFETY: the caller's promise covers all that is reached from the operation; a null block or
    // operation ends its list.
    unsafe {
        for index in 0..mlirOperationGetNumRegions(operation) {
            let mut block = mlirRegionGetFirstBlock(mlirOperationGetRegion(operation, index));
            while !block.ptr.is_null() {
                let mut inner = mlirBlockGetFirstOperation(block);
                while !inner.ptr.is_null() {
                    operations.push(inner);
                    inner = mlirOperationGetNextInBlock(inner);
                }
                block = mlirBlockGetNextInRegion(block);
            }
        }
    }
    operations
}

/// # Safety
/// `operation` must be live and its context locked.
unsafe fn read(operation: MlirOperation, function: &[u8]) -> EmittedCall {
    // SAFETY: the caller's promise; indices stay below the counts that MLIR gives.
    unsafe {
        let mut mlir_attributes = Vec::new();
        for index in 0..mlirOperationGetNumAttributes(operation) {
            let named = mlirOperationGetAttribute(operation, index);
            let name = bytes(mlirIdentifierStr(named.name));
            if !matches!(
                name.as_slice(),
                b"call_target_name" | b"api_version" | b"backend_config"
            ) {
                mlir_attributes.push((name, print(named.attribute)));
            }
        }
        mlir_attributes.sort();
        EmittedCall {
            function: function.to_vec(),
            call_target_name: string(attribute_named(operation, b"call_target_name"))
                .unwrap_or_default(),
            api_version: integer(attribute_named(operation, b"api_version")).unwrap_or(0),
            backend_config: backend_config(attribute_named(operation, b"backend_config")),
            mlir_attributes,
            operands: (0..mlirOperationGetNumOperands(operation))
                .map(|index| emitted_type(mlirOperationGetOperand(operation, index)))
                .collect(),
            results: (0..mlirOperationGetNumResults(operation))
                .map(|index| emitted_type(mlirOperationGetResult(operation, index)))
                .collect(),
        }
    }
}

/// # Safety
/// `attribute` must be null or live and its context locked.
unsafe fn backend_config(attribute: MlirAttribute) -> BackendConfig {
    // SAFETY: the caller's promise; the kind is checked before the attribute is read as that kind.
    unsafe {
        if attribute.ptr.is_null() {
            return BackendConfig::Absent;
        }
        if mlirAttributeIsADictionary(attribute) {
            let mut entries: Vec<_> = (0..mlirDictionaryAttrGetNumElements(attribute))
                .map(|index| {
                    let entry = mlirDictionaryAttrGetElement(attribute, index);
                    (bytes(mlirIdentifierStr(entry.name)), print(entry.attribute))
                })
                .collect();
            entries.sort();
            return BackendConfig::Dictionary(entries);
        }
        BackendConfig::Bytes(string(attribute).unwrap_or_else(|| print(attribute)))
    }
}

/// # Safety
/// `value` must be live and its context locked.
unsafe fn emitted_type(value: MlirValue) -> EmittedType {
    // SAFETY: the caller's promise.
    let r#type = unsafe { MlirType::from_raw(mlirValueGetType(value)) };
    match Type::from_mlir(r#type) {
        Some(known) => EmittedType::Known(known),
        None => EmittedType::Other(types::print(r#type)),
    }
}

/// # Safety
/// `operation` must be live and its context locked.
unsafe fn attribute_named(operation: MlirOperation, name: &[u8]) -> MlirAttribute {
    // SAFETY: the caller's promise; the name is read during the call.
    unsafe { mlirOperationGetAttributeByName(operation, crate::sink::string_ref(name)) }
}

/// # Safety
/// `attribute` must be null or live and its context locked.
unsafe fn string(attribute: MlirAttribute) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise; the kind is checked first.
    unsafe {
        (!attribute.ptr.is_null() && mlirAttributeIsAString(attribute))
            .then(|| bytes(mlirStringAttrGetValue(attribute)))
    }
}

/// # Safety
/// `attribute` must be null or live and its context locked.
unsafe fn integer(attribute: MlirAttribute) -> Option<i64> {
    // SAFETY: the caller's promise; kind and width are checked first, since MLIR asserts both.
    unsafe {
        if attribute.ptr.is_null() || !mlirAttributeIsAInteger(attribute) {
            return None;
        }
        let r#type = mlirAttributeGetType(attribute);
        (mlirTypeIsAInteger(r#type) && mlirIntegerTypeGetWidth(r#type) <= 64)
            .then(|| mlirIntegerAttrGetValueInt(attribute))
    }
}

/// # Safety
/// `attribute` must be live and its context locked.
unsafe fn print(attribute: MlirAttribute) -> Vec<u8> {
    // SAFETY: the caller's promise.
    attribute::print(unsafe { &Attribute::from_raw(attribute) })
}

/// # Safety
/// `string` must be readable for its length.
unsafe fn bytes(string: MlirStringRef) -> Vec<u8> {
    if string.length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise; the length is not 0, so the pointer is not null.
    unsafe { slice::from_raw_parts(string.data.cast(), string.length) }.to_vec()
}
