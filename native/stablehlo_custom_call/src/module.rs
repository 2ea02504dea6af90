use crate::{
    attribute::{self, Named},
    context::{Context, Inner},
    custom_call::CustomCall,
    error::{Error, Place},
    graph::{Block, Function, Graph, NamedText, Operation, OperationKind, ValueId},
    names,
    rules::{self, Budget, Calls, Findings, Parsed, Position, Scope},
    shardy::Meshes,
    sink::{collect, string_ref},
    types::{ElementType, Type},
    warning::Warning,
};
use melior::ir::{
    attribute::{FlatSymbolRefAttribute, TypeAttribute},
    operation::OperationBuilder,
    r#type::FunctionType,
    Attribute, Block as MlirBlock, BlockLike, Identifier, Location, Region, RegionLike,
    Type as MlirType, TypeLike, Value, ValueLike,
};
use mlir_sys::{
    mlirArrayAttrGet, mlirBytecodeWriterConfigCreate, mlirBytecodeWriterConfigDesiredEmitVersion,
    mlirBytecodeWriterConfigDestroy, mlirDenseElementsAttrRawBufferGet, mlirModuleCreateParse,
    mlirModuleDestroy, mlirModuleGetOperation, mlirOpPrintingFlagsAssumeVerified,
    mlirOpPrintingFlagsCreate, mlirOpPrintingFlagsDestroy, mlirOperationPrintWithFlags,
    mlirOperationWriteBytecodeWithConfig, MlirModule, MlirValue,
};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt::{self, Debug, Formatter},
    mem,
};

/// An MLIR module together with the context that it lives in.
pub struct Module {
    raw: MlirModule,
    context: Context,
    size: Size,
    has_nested_calls: bool,
    has_hlo_sharding: bool,
    needs_newer: bool,
    warnings: Vec<Warning>,
}

/// What a module that was built here needs of a plugin and its options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// It has an `mhlo.sharding`, over which the CPU plugin of PJRT 0.115 ends the process where Shardy
    /// meets it.
    no_shardy: bool,
    /// It has an attribute of Shardy's that the CPU plugin of PJRT 0.106 does not read.
    newer_api: bool,
}

impl Needs {
    /// Checks them against the partitioner and the version of the PJRT API.
    pub fn check(self, shardy: bool, api_version: (i32, i32)) -> Result<(), Error> {
        if shardy && self.no_shardy {
            return Err(Error::Partitioner);
        }
        if self.newer_api && api_version <= rules::OLD_API {
            return Err(Error::OldPlugin { found: api_version });
        }
        Ok(())
    }
}

/// What a module's cost to print, read and free grows with.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    operations: usize,
    bytes: usize,
}

// SAFETY: the module and everything reachable from it are used only while its context's lock is
// held, on whichever thread.
unsafe impl Send for Module {}
// SAFETY: as above; a shared reference gives access only under the lock.
unsafe impl Sync for Module {}

/// The last version of MLIR's bytecode that keeps an operation's properties as a dictionary of
/// attributes. Later ones write them field by field, as this MLIR's `func.func` has them, and the
/// newer `func.func` of a plugin has other fields.
const BYTECODE_VERSION: i64 = 4;

impl Module {
    /// Builds the module that `graph` describes, checks its custom calls, and has MLIR verify it.
    pub fn build(context: &Context, graph: &Graph<'_>) -> Result<Self, Error> {
        Self::build_with(context, graph, true)
    }

    /// The same without the rules of custom calls, of shardings and of functions that call each other:
    /// names and texts are checked, and nothing else is. XLA may end the process over what comes out.
    ///
    /// It is there for tests that hold the rules against XLA's verdict, and for measuring their cost.
    pub fn build_unchecked(context: &Context, graph: &Graph<'_>) -> Result<Self, Error> {
        Self::build_with(context, graph, false)
    }

    fn build_with(context: &Context, graph: &Graph<'_>, checked: bool) -> Result<Self, Error> {
        let inner = context.lock();
        let mut findings = Findings::default();
        let meshes = if checked {
            rules::meshes(&graph.meshes, &mut findings)
        } else {
            Meshes::default()
        };
        Error::all(findings.errors)?;
        let names = graph
            .functions
            .iter()
            .map(|function| function.name)
            .collect();
        let builder = Builder {
            inner: &inner,
            limits: context.limits(),
            location: Location::unknown(inner.context()),
            size: Size::default(),
            scope: checked.then_some(Scope {
                functions: &names,
                meshes: &meshes,
            }),
            calls: Calls::default(),
            budget: Budget::new(context.limits().max_array_bytes),
            reducer: None,
            several_calls: several_custom_calls(graph),
            custom_calls: 0,
            function: "",
            functions: graph.functions.iter().map(|f| (f.name, f)).collect(),
            has_nested_calls: false,
            errors: Vec::new(),
            more_errors: 0,
            has_hlo_sharding: false,
            needs_newer: false,
            warnings: findings.warnings,
        };
        let Finished {
            module,
            size,
            has_nested_calls,
            has_hlo_sharding,
            needs_newer,
            warnings,
        } = builder.module(graph)?;
        inner.diagnostics.take();
        if !verifies(&module, has_nested_calls) {
            return Err(Error::Verification {
                message: inner.diagnostics.take_text("it does not verify"),
            });
        }
        let raw = module.to_raw();
        mem::forget(module);
        Ok(Self {
            raw,
            context: context.clone(),
            size,
            has_nested_calls,
            has_hlo_sharding,
            needs_newer,
            warnings,
        })
    }

    /// What is legal in the module, and what XLA will not do as it says.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Reads a module from its bytecode or text.
    ///
    /// MLIR's parsers recurse and trust what they read more than a stranger's bytes deserve: hand
    /// them only what [`to_bytecode`](Self::to_bytecode) or [`to_text`](Self::to_text) wrote.
    pub fn parse(context: &Context, source: &[u8]) -> Result<Self, Error> {
        let inner = context.lock();
        inner.diagnostics.take();
        // MLIR's lexer looks for a NUL after the text, where a slice has none.
        let terminated = [source, b"\0"].concat();
        // SAFETY: MLIR reads the source, and the byte after it, during the call only; a null module
        // is checked for.
        let raw = unsafe {
            mlirModuleCreateParse(
                inner.context().to_raw(),
                string_ref(&terminated[..source.len()]),
            )
        };
        if raw.ptr.is_null() {
            return Err(Error::Verification {
                message: inner.diagnostics.take_text("it does not parse"),
            });
        }
        Ok(Self {
            raw,
            context: context.clone(),
            size: Size::default(),
            has_nested_calls: false,
            has_hlo_sharding: false,
            needs_newer: false,
            warnings: Vec::new(),
        })
    }

    /// Whether [`parse`](Self::parse) reads what this module is written as. It verifies what it reads,
    /// and does not find the functions that a region calls; XLA, which knows the operations, does.
    pub fn can_be_parsed(&self) -> bool {
        !self.has_nested_calls
    }

    /// Another module that is the same, in the same context.
    pub fn duplicate(&self) -> Self {
        let raw = self.with_operation(|operation| {
            // SAFETY: the operation is a live module, locked for the call, and so is its clone, which
            // the new value owns.
            unsafe { mlir_sys::mlirModuleFromOperation(mlir_sys::mlirOperationClone(operation)) }
        });
        Self {
            raw,
            context: self.context.clone(),
            warnings: self.warnings.clone(),
            ..*self
        }
    }

    /// What decides whether a plugin can compile the module.
    pub fn needs(&self) -> Needs {
        Needs {
            no_shardy: self.has_hlo_sharding,
            newer_api: self.needs_newer,
        }
    }

    /// How many operations a module that was built here holds, those in regions included.
    pub fn operation_count(&self) -> usize {
        self.size.operations
    }

    /// The bytes of its operations' attribute texts and constants.
    pub fn data_bytes(&self) -> usize {
        self.size.bytes
    }

    /// Marks parameters of the entry function `main` as donated: the compiler may use their memory
    /// for results of equal size. XLA reads it from the parameter's attribute `jax.buffer_donor`.
    pub fn donate(&self, parameters: &[usize]) -> Result<(), Error> {
        let inner = self.context.lock();
        let context = inner.context();
        let donor = [(
            Identifier::new(context, "jax.buffer_donor"),
            melior::ir::attribute::BoolAttribute::new(context, true).into(),
        )];
        // SAFETY: the module is live and its context locked; the entry function is found by name
        // and its argument attributes are replaced by an array of as many dictionaries as it has
        // arguments.
        unsafe {
            let body = mlir_sys::mlirModuleGetBody(self.raw);
            let mut operation = mlir_sys::mlirBlockGetFirstOperation(body);
            while !operation.ptr.is_null() && !is_entry(operation) {
                operation = mlir_sys::mlirOperationGetNextInBlock(operation);
            }
            if operation.ptr.is_null() {
                return Err(Error::Donation {
                    problem: "the module has no function main".into(),
                });
            }
            let region = mlir_sys::mlirOperationGetRegion(operation, 0);
            let block = mlir_sys::mlirRegionGetFirstBlock(region);
            let count = usize::try_from(mlir_sys::mlirBlockGetNumArguments(block)).unwrap_or(0);
            if let Some(wrong) = parameters.iter().find(|&&index| index >= count) {
                return Err(Error::Donation {
                    problem: format!("parameter {wrong} is not one of the {count} of main"),
                });
            }
            let present =
                mlir_sys::mlirOperationGetAttributeByName(operation, string_ref(b"arg_attrs"));
            let lists: Vec<_> = (0..count)
                .map(|index| {
                    let mut list = Vec::new();
                    if !present.ptr.is_null() {
                        let dictionary = mlir_sys::mlirArrayAttrGetElement(present, index as isize);
                        for entry in 0..mlir_sys::mlirDictionaryAttrGetNumElements(dictionary) {
                            let named = mlir_sys::mlirDictionaryAttrGetElement(dictionary, entry);
                            list.push((
                                Identifier::from_raw(named.name),
                                Attribute::from_raw(named.attribute),
                            ));
                        }
                    }
                    let marked = list.iter().any(|(name, _)| *name == donor[0].0);
                    if parameters.contains(&index) && !marked {
                        list.extend(donor);
                    }
                    list
                })
                .collect();
            let lists = dictionaries(&inner, &lists);
            use melior::ir::AttributeLike;
            mlir_sys::mlirOperationSetAttributeByName(
                operation,
                string_ref(b"arg_attrs"),
                lists.to_raw(),
            );
        }
        Ok(())
    }

    /// The module as MLIR text.
    pub fn to_text(&self) -> String {
        let bytes = self.with_operation(|operation| {
            // SAFETY: the operation is live and locked for the call; the flags are destroyed after it. It
            // was verified when it was made: see `verifies`, whose verdict the printer would not share.
            unsafe {
                let flags = mlirOpPrintingFlagsCreate();
                mlirOpPrintingFlagsAssumeVerified(flags);
                let text = collect(|callback, data| {
                    mlirOperationPrintWithFlags(operation, flags, Some(callback), data);
                });
                mlirOpPrintingFlagsDestroy(flags);
                text
            }
        });
        // MLIR escapes what is not printable in strings; only the texts of dialect attributes are
        // printed as they came.
        match String::from_utf8_lossy(&bytes) {
            Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
            Cow::Owned(text) => text,
        }
    }

    /// The module as MLIR bytecode: smaller than text, and large constants stay bytes.
    pub fn to_bytecode(&self) -> Vec<u8> {
        self.with_operation(|operation| {
            // SAFETY: the operation is live and locked for the call; the configuration is destroyed
            // after it.
            unsafe {
                let config = mlirBytecodeWriterConfigCreate();
                mlirBytecodeWriterConfigDesiredEmitVersion(config, BYTECODE_VERSION);
                let bytes = collect(|callback, data| {
                    // It fails only for a version that this MLIR cannot write.
                    mlirOperationWriteBytecodeWithConfig(operation, config, Some(callback), data);
                });
                mlirBytecodeWriterConfigDestroy(config);
                bytes
            }
        })
    }

    pub(crate) fn with_operation<T>(&self, f: impl FnOnce(mlir_sys::MlirOperation) -> T) -> T {
        let _inner = self.context.lock();
        // SAFETY: the module is live until drop.
        f(unsafe { mlirModuleGetOperation(self.raw) })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _inner = self.context.lock();
        // SAFETY: `raw` is owned by this value alone, and the context, a field of it, still lives.
        unsafe { mlirModuleDestroy(self.raw) };
    }
}

impl Debug for Module {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Module")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

struct Finished<'c> {
    module: melior::ir::Module<'c>,
    size: Size,
    has_nested_calls: bool,
    has_hlo_sharding: bool,
    needs_newer: bool,
    warnings: Vec<Warning>,
}

/// Has MLIR verify a module.
///
/// From a call inside an operation of one region that MLIR does not know, such as `stablehlo.reduce`, it
/// does not find the functions of the module: that operation could be a table of symbols of its own. A
/// module with such calls is verified function by function. That leaves out what MLIR asks of the module
/// itself, all of which was checked when it was made: that its names are different, that its attributes
/// are of dialects, and that calls fit their functions.
fn verifies(module: &melior::ir::Module<'_>, has_nested_calls: bool) -> bool {
    if !has_nested_calls {
        return module.as_operation().verify();
    }
    // SAFETY: the module is live and its context locked by the caller; each operation is one of its
    // body's, and null ends the list.
    unsafe {
        let mut operation = mlir_sys::mlirBlockGetFirstOperation(module.body().to_raw());
        while !operation.ptr.is_null() {
            if !mlir_sys::mlirOperationVerify(operation) {
                return false;
            }
            operation = mlir_sys::mlirOperationGetNextInBlock(operation);
        }
        true
    }
}

struct Builder<'c, 's> {
    inner: &'c Inner,
    limits: crate::Limits,
    location: Location<'c>,
    size: Size,
    /// What custom calls are checked against; `None` leaves them unchecked.
    scope: Option<Scope<'s>>,
    calls: Calls,
    /// The bytes that arrays may still take.
    budget: Budget,
    /// The operation whose region at hand XLA makes a loop of its own of.
    reducer: Option<&'static str>,
    /// Whether an error has to say which custom call it is about.
    several_calls: bool,
    /// The custom calls of the function at hand, so far.
    custom_calls: usize,
    /// The name of the function at hand.
    function: &'s str,
    /// All functions, by name.
    functions: HashMap<&'s [u8], &'s Function<'s>>,
    /// Whether a region has a call.
    has_nested_calls: bool,
    /// What is wrong with custom calls, parameters and results, so far.
    errors: Vec<Error>,
    /// How many more are at fault than `errors` tells of.
    more_errors: usize,
    has_hlo_sharding: bool,
    needs_newer: bool,
    warnings: Vec<Warning>,
}

/// Of one module, more faulty calls and values than this tell nobody anything.
const MOST_REFUSALS: usize = 16;

/// Operations of whose regions XLA's CPU compiler makes loops of its own, in which it does not expect a
/// custom call: it ends the process. Found by experiment.
const REDUCERS: [&str; 4] = [
    "stablehlo.reduce",
    "stablehlo.reduce_window",
    "stablehlo.scatter",
    "stablehlo.select_and_scatter",
];

/// The values of one function by number, each with its type. A map, for the numbers are the caller's: a
/// few operations whose numbers are far apart take no more memory than others.
#[derive(Default)]
struct Values<'g> {
    defined: HashMap<ValueId, (MlirValue, &'g Type)>,
}

impl<'g> Values<'g> {
    fn define(&mut self, id: ValueId, value: MlirValue, r#type: &'g Type) -> Result<(), Error> {
        match self.defined.insert(id, (value, r#type)) {
            None => Ok(()),
            Some(_) => Err(Error::RedefinedValue { value: id }),
        }
    }

    fn get<'c, 'a>(
        &self,
        ids: &[ValueId],
        place: impl Fn() -> String,
    ) -> Result<Vec<Value<'c, 'a>>, Error> {
        ids.iter()
            .map(|id| match self.defined.get(id) {
                // SAFETY: what is here is a value whose block is being built and lives at least until
                // the function is finished: `end_region` forgets those of a finished region.
                Some((raw, _)) => Ok(unsafe { Value::from_raw(*raw) }),
                None => Err(Error::UndefinedValue {
                    place: place(),
                    value: *id,
                }),
            })
            .collect()
    }

    /// The types of values, of those that are defined.
    fn types(&self, ids: &[ValueId]) -> Vec<&'g Type> {
        ids.iter()
            .filter_map(|id| self.defined.get(id))
            .map(|(_, r#type)| *r#type)
            .collect()
    }

    /// Forgets what a region defined, so that nothing outside it can name it.
    fn end_region(&mut self, defined: &[ValueId]) {
        for id in defined {
            self.defined.remove(id);
        }
    }
}

impl<'c, 's> Builder<'c, 's> {
    fn module(mut self, graph: &'s Graph<'_>) -> Result<Finished<'c>, Error> {
        let module = melior::ir::Module::new(self.location);
        for attribute in &graph.attributes {
            if matches!(attribute.name, b"sym_name" | b"sym_visibility") {
                return Err(Error::ReservedName {
                    field: "module_attributes",
                    name: attribute.name.into(),
                    remedy: "use the module's name; its visibility has no meaning",
                });
            }
            if self.scope.is_some() && rules::module_reads_blindly(attribute.name) {
                return Err(Error::ReservedName {
                    field: "module_attributes",
                    name: attribute.name.into(),
                    remedy: rules::INSTEAD_OF_READ_BLINDLY,
                });
            }
        }
        names::check_dialects("module_attributes", &graph.attributes)?;
        let mut attributes = self.parse("module_attributes", &graph.attributes)?;
        if let Some(name) = graph.name {
            names::check_function(name)?;
            attributes.push((
                self.identifier("sym_name"),
                attribute::string(self.inner, name),
            ));
        }
        for (name, value) in attributes {
            set_attribute(&module, name, value);
        }
        let mut seen = HashSet::new();
        for mesh in &graph.meshes {
            let name = names::check_function(mesh.name)?;
            seen.insert(name);
            let operation = self.mesh(name, mesh)?;
            module.body().append_operation(operation);
        }
        for function in &graph.functions {
            let name = names::check_function(function.name)?;
            if !seen.insert(name) {
                return Err(Error::FunctionName {
                    name: name.into(),
                    problem: if graph.meshes.iter().any(|mesh| mesh.name == function.name) {
                        "names a mesh too; give the mesh another"
                    } else {
                        "names two functions; give each function its own name"
                    },
                });
            }
            let operation = self.function(name, function)?;
            module.body().append_operation(operation);
        }
        Error::flat(self.errors, self.more_errors)?;
        if self.scope.is_some() {
            rules::check_calls(&self.calls)?;
        }
        Ok(Finished {
            module,
            size: self.size,
            has_nested_calls: self.has_nested_calls,
            has_hlo_sharding: self.has_hlo_sharding,
            needs_newer: self.needs_newer,
            warnings: self.warnings,
        })
    }

    fn mesh(
        &mut self,
        name: &str,
        mesh: &NamedText<'_>,
    ) -> Result<melior::ir::Operation<'c>, Error> {
        let value = attribute::parse(
            self.inner,
            &self.limits,
            "meshes",
            Position::Elsewhere,
            mesh,
        )?;
        let attributes = [
            (
                self.identifier("sym_name"),
                attribute::string(self.inner, name.as_bytes()),
            ),
            (self.identifier("mesh"), value),
        ];
        self.create("sdy.mesh", &[], &[], &attributes, vec![])
    }

    fn function(
        &mut self,
        name: &'s str,
        function: &'s Function<'_>,
    ) -> Result<melior::ir::Operation<'c>, Error> {
        self.function = name;
        self.custom_calls = 0;
        let mut parameter_types = Vec::with_capacity(function.parameters.len());
        let mut parameter_attributes = Vec::with_capacity(function.parameters.len());
        for (index, parameter) in function.parameters.iter().enumerate() {
            parameter
                .r#type
                .check(|| format!("parameter {index} of {name}"))?;
            parameter_types.push(parameter.r#type.to_mlir(self.inner.context()));
            let place = Place::Parameter(index);
            parameter_attributes.push(self.parse_of_value(
                place,
                &parameter.r#type,
                &parameter.attributes,
            ));
        }
        let mut result_types = Vec::with_capacity(function.results.len());
        let mut result_attributes = Vec::with_capacity(function.results.len());
        for (index, result) in function.results.iter().enumerate() {
            result
                .r#type
                .check(|| format!("result {index} of {name}"))?;
            result_types.push(result.r#type.to_mlir(self.inner.context()));
            let place = Place::Result(index);
            result_attributes.push(self.parse_of_value(place, &result.r#type, &result.attributes));
        }

        let arguments: Vec<_> = parameter_types
            .iter()
            .map(|&r#type| (r#type, self.location))
            .collect();
        let block = MlirBlock::new(&arguments);
        let mut values = Values::default();
        for (index, parameter) in function.parameters.iter().enumerate() {
            values.define(parameter.value, argument(&block, index)?, &parameter.r#type)?;
        }
        self.operations(&block, &function.body, &mut values, &mut Vec::new(), 0)?;
        let outputs = values.get(&function.body.outputs, || format!("the results of {name}"))?;
        block.append_operation(self.create("func.return", &outputs, &[], &[], vec![])?);

        let region = Region::new();
        region.append_block(block);
        let r#type = FunctionType::new(self.inner.context(), &parameter_types, &result_types);
        let mut attributes = vec![
            (
                self.identifier("sym_name"),
                attribute::string(self.inner, name.as_bytes()),
            ),
            (
                self.identifier("function_type"),
                TypeAttribute::new(r#type.into()).into(),
            ),
        ];
        if function.private {
            attributes.push((
                self.identifier("sym_visibility"),
                attribute::string(self.inner, b"private"),
            ));
        }
        if parameter_attributes.iter().any(|list| !list.is_empty()) {
            attributes.push((
                self.identifier("arg_attrs"),
                self.dictionaries(&parameter_attributes),
            ));
        }
        if result_attributes.iter().any(|list| !list.is_empty()) {
            attributes.push((
                self.identifier("res_attrs"),
                self.dictionaries(&result_attributes),
            ));
        }
        self.create("func.func", &[], &[], &attributes, vec![region])
    }

    /// Appends the operations of `source` to `block`. `defined` receives the numbers of what they
    /// define, for the region that they are in.
    fn operations<'g>(
        &mut self,
        block: &MlirBlock<'c>,
        source: &'g Block<'_>,
        values: &mut Values<'g>,
        defined: &mut Vec<ValueId>,
        depth: usize,
    ) -> Result<(), Error> {
        for operation in &source.operations {
            let built = self.operation(operation, values, depth)?;
            let appended = block.append_operation(built);
            for index in 0..operation.results.len() {
                let id = result_id(operation, index)?;
                let result = appended.result(index).map_err(|_| Error::UndefinedValue {
                    place: "an operation has fewer results than its types".into(),
                    value: id,
                })?;
                values.define(id, result.to_raw(), &operation.results[index])?;
                defined.push(id);
            }
        }
        Ok(())
    }

    fn operation<'g>(
        &mut self,
        operation: &'g Operation<'_>,
        values: &mut Values<'g>,
        depth: usize,
    ) -> Result<melior::ir::Operation<'c>, Error> {
        let name = match &operation.kind {
            OperationKind::CustomCall(_) => "stablehlo.custom_call",
            OperationKind::Constant(_) => "stablehlo.constant",
            OperationKind::Call(_) => "func.call",
            OperationKind::Generic { name, .. } => names::check_operation(name)?,
        };
        let mut types = Vec::with_capacity(operation.results.len());
        for (index, r#type) in operation.results.iter().enumerate() {
            r#type.check(|| format!("result {index} of {name}"))?;
            types.push(r#type.to_mlir(self.inner.context()));
        }
        self.size.bytes += operation.kind.byte_count();
        let operands = values.get(&operation.operands, || format!("an operand of {name}"))?;
        let attributes = match &operation.kind {
            OperationKind::CustomCall(call) => {
                self.custom_call(call, &values.types(&operation.operands), &operation.results)?
            }
            OperationKind::Constant(bytes) => {
                vec![(
                    self.identifier("value"),
                    self.constant(bytes, &operation.results, &types)?,
                )]
            }
            OperationKind::Call(callee) => {
                let name = names::check_function(callee)?;
                self.check_call(name, &values.types(&operation.operands), &operation.results)?;
                self.has_nested_calls |= depth > 0;
                self.called(vec![callee.to_vec()]);
                let symbol = FlatSymbolRefAttribute::new(self.inner.context(), name);
                vec![(self.identifier("callee"), symbol.into())]
            }
            OperationKind::Generic { attributes, .. } => {
                self.check_sharding(attributes, |meshes, given, findings| {
                    let operands = values.types(&operation.operands);
                    let results = &operation.results;
                    let field = "operation_attributes";
                    rules::check_sharding(field, meshes, &operands, results, given, findings);
                })?;
                self.parse_of_types("operation_attributes", &operation.results, attributes)?
            }
        };
        let mut regions = Vec::with_capacity(operation.regions.len());
        let outer = self.reducer;
        self.reducer = outer.or(REDUCERS.into_iter().find(|reducer| *reducer == name));
        for region in &operation.regions {
            regions.push(self.region(region, values, depth + 1)?);
        }
        self.reducer = outer;
        self.create(name, &operands, &types, &attributes, regions)
    }

    fn custom_call(
        &mut self,
        call: &CustomCall<'_>,
        operands: &[&Type],
        results: &[Type],
    ) -> Result<Vec<Named<'c>>, Error> {
        self.note(&call.mlir_attributes);
        let index = self.custom_calls;
        self.custom_calls += 1;
        let emitted = call
            .emit(
                self.inner,
                &self.limits,
                self.scope,
                operands,
                results,
                &mut self.budget,
            )
            .and_then(|emitted| match self.reducer {
                Some(reducer) if self.scope.is_some() => {
                    Err(rules::in_reducer(call.call_target_name, reducer))
                }
                _ => Ok(emitted),
            })
            .map_err(|error| {
                if !self.several_calls {
                    return error;
                }
                Error::InCall {
                    function: self.function.into(),
                    index,
                    target: call.call_target_name.into(),
                    error: Box::new(error),
                }
            });
        let emitted = match emitted {
            Ok(emitted) => emitted,
            Err(error) => {
                // The others are looked at too; the module is not kept.
                self.refused(error);
                return Ok(Vec::new());
            }
        };
        self.calls.with_custom_calls.insert(self.function.into());
        self.called(emitted.called);
        self.warnings.extend(emitted.warnings);
        self.needs_newer |= emitted.needs_newer;
        Ok(emitted.attributes)
    }

    /// Notes a fault beside which others may be found.
    fn refused(&mut self, error: Error) {
        if self.errors.len() < MOST_REFUSALS {
            self.errors.push(error);
        } else {
            self.more_errors += 1;
        }
    }

    /// Checks that a call fits the function that it names.
    fn check_call(&self, name: &str, operands: &[&Type], results: &[Type]) -> Result<(), Error> {
        let wrong = |problem: String| {
            Err(Error::Call {
                caller: self.function.into(),
                callee: name.into(),
                problem,
            })
        };
        let Some(callee) = self.functions.get(name.as_bytes()) else {
            return wrong("the module has no such function; give it with the graph".into());
        };
        let list = |types: &[&Type]| {
            let types: Vec<_> = types.iter().map(ToString::to_string).collect();
            types.join(", ")
        };
        let takes: Vec<_> = callee.parameters.iter().map(|p| &p.r#type).collect();
        if takes != operands {
            return wrong(format!(
                "it takes ({}), and the call gives ({})",
                list(&takes),
                list(operands)
            ));
        }
        let gives: Vec<_> = callee.results.iter().map(|r| &r.r#type).collect();
        let wanted: Vec<_> = results.iter().collect();
        if gives != wanted {
            return wrong(format!(
                "it gives ({}), and the call expects ({})",
                list(&gives),
                list(&wanted)
            ));
        }
        Ok(())
    }

    /// Notes that the function at hand calls others.
    fn called(&mut self, mut names: Vec<Vec<u8>>) {
        if !names.is_empty() {
            if self.reducer.is_some() {
                self.calls.from_reducers.extend(names.iter().cloned());
            }
            let of_function = self.calls.callees.entry(self.function.into()).or_default();
            of_function.append(&mut names);
        }
    }

    /// Checks attributes of Shardy's, where the rules are checked at all.
    fn check_sharding(
        &mut self,
        attributes: &[NamedText<'_>],
        check: impl Fn(&Meshes, &NamedText<'_>, &mut Findings),
    ) -> Result<(), Error> {
        let Some(scope) = self.scope else {
            return Ok(());
        };
        let mut findings = Findings::default();
        for given in attributes {
            if given.name.starts_with(b"sdy.") {
                check(scope.meshes, given, &mut findings);
            }
        }
        self.warnings.append(&mut findings.warnings);
        self.needs_newer |= findings.needs_newer;
        Error::all(findings.errors)
    }

    fn region<'g>(
        &mut self,
        source: &'g Block<'_>,
        values: &mut Values<'g>,
        depth: usize,
    ) -> Result<Region<'c>, Error> {
        if depth > self.limits.max_nesting {
            return Err(Error::RegionsTooDeep {
                limit: self.limits.max_nesting,
            });
        }
        let mut arguments = Vec::with_capacity(source.arguments.len());
        for (index, (_, r#type)) in source.arguments.iter().enumerate() {
            r#type.check(|| format!("argument {index} of a region"))?;
            arguments.push((r#type.to_mlir(self.inner.context()), self.location));
        }
        let block = MlirBlock::new(&arguments);
        let mut defined = Vec::new();
        for (index, (id, r#type)) in source.arguments.iter().enumerate() {
            values.define(*id, argument(&block, index)?, r#type)?;
            defined.push(*id);
        }
        self.operations(&block, source, values, &mut defined, depth)?;
        let outputs = values.get(&source.outputs, || "the results of a region".into())?;
        let terminator = match source.terminator {
            Some(name) => names::check_operation(name)?,
            None => "stablehlo.return",
        };
        block.append_operation(self.create(terminator, &outputs, &[], &[], vec![])?);
        values.end_region(&defined);
        let region = Region::new();
        region.append_block(block);
        Ok(region)
    }

    fn create(
        &mut self,
        name: &str,
        operands: &[Value<'c, '_>],
        results: &[MlirType<'c>],
        attributes: &[Named<'c>],
        regions: Vec<Region<'c>>,
    ) -> Result<melior::ir::Operation<'c>, Error> {
        self.size.operations += 1;
        OperationBuilder::new(name, self.location)
            .add_operands(operands)
            .add_results(results)
            .add_attributes(attributes)
            .add_regions_vec(regions)
            .build()
            .map_err(|_| Error::Operation {
                operation: name.into(),
                message: self.inner.diagnostics.take_text("it cannot be made"),
            })
    }

    fn constant(
        &self,
        bytes: &[u8],
        results: &[Type],
        types: &[MlirType<'c>],
    ) -> Result<Attribute<'c>, Error> {
        let (
            [Type::Tensor {
                element,
                dimensions,
            }],
            [r#type],
        ) = (results, types)
        else {
            return Err(Error::ConstantToken);
        };
        // The type was checked: the product fits.
        let count = dimensions.iter().product::<i64>() as usize;
        let size_error = || Error::ConstantSize {
            tensor: results[0].to_string(),
            expected: count * element.byte_size(),
            found: bytes.len(),
        };
        if bytes.len() != count * element.byte_size() {
            return Err(size_error());
        }
        if let Some((index, &byte)) = bytes
            .iter()
            .enumerate()
            .find(|(_, byte)| !element.holds(**byte))
        {
            return Err(Error::ConstantElement {
                index,
                byte,
                element: element.text(),
            });
        }
        let bytes = match element {
            ElementType::Pred => Cow::Owned(pack_bits(bytes)),
            _ => Cow::Borrowed(bytes),
        };
        // SAFETY: MLIR checks the size against the type, copies the bytes, and returns null when
        // they do not fit.
        unsafe {
            Attribute::from_option_raw(mlirDenseElementsAttrRawBufferGet(
                r#type.to_raw(),
                bytes.len(),
                bytes.as_ptr().cast(),
            ))
        }
        .ok_or_else(size_error)
    }

    /// Notes what the choice of a partitioner depends on.
    fn note(&mut self, attributes: &[NamedText<'_>]) {
        self.has_hlo_sharding |= attributes
            .iter()
            .any(|given| given.name == b"mhlo.sharding");
    }

    fn parse(
        &mut self,
        field: &'static str,
        attributes: &[NamedText<'_>],
    ) -> Result<Vec<Named<'c>>, Error> {
        self.parse_of_types(field, &[], attributes)
    }

    /// Attributes of a thing with values of these types.
    fn parse_of_types(
        &mut self,
        field: &'static str,
        types: &[Type],
        attributes: &[NamedText<'_>],
    ) -> Result<Vec<Named<'c>>, Error> {
        self.note(attributes);
        let parsed = attribute::parse_all(
            self.inner,
            &self.limits,
            field,
            Position::Elsewhere,
            attributes,
        )?;
        if self.scope.is_some() {
            let mut findings = Findings::default();
            for (given, (_, attribute)) in attributes.iter().zip(&parsed) {
                let parsed = Parsed {
                    given,
                    attribute: *attribute,
                };
                rules::check_frontend(field, &parsed, &mut findings);
                if given.name == b"mhlo.sharding" {
                    rules::check_hlo_sharding(field, types, &parsed, &mut findings);
                }
            }
            self.warnings.append(&mut findings.warnings);
            Error::all(findings.errors)?;
        }
        Ok(parsed)
    }

    /// Attributes of a function's parameter or result.
    fn parse_of_value(
        &mut self,
        place: Place,
        r#type: &Type,
        attributes: &[NamedText<'_>],
    ) -> Vec<Named<'c>> {
        let field = place.field();
        let parsed = self
            .parse_of_types(field, std::slice::from_ref(r#type), attributes)
            .and_then(|parsed| {
                names::check_dialects(field, attributes)?;
                self.check_sharding(attributes, |meshes, given, findings| {
                    rules::check_value_sharding(field, meshes, r#type, given, findings);
                })?;
                Ok(parsed)
            });
        parsed.unwrap_or_else(|error| {
            self.refused(Error::OfValue {
                function: self.function.into(),
                place,
                error: Box::new(error),
            });
            Vec::new()
        })
    }

    fn identifier(&self, name: &str) -> Identifier<'c> {
        Identifier::new(self.inner.context(), name)
    }

    fn dictionaries(&self, lists: &[Vec<Named<'c>>]) -> Attribute<'c> {
        dictionaries(self.inner, lists)
    }
}

/// An array with one dictionary an argument or result, as `func.func` keeps them.
fn dictionaries<'c>(inner: &'c Inner, lists: &[Vec<Named<'c>>]) -> Attribute<'c> {
    let dictionaries: Vec<_> = lists
        .iter()
        .map(|list| {
            use melior::ir::AttributeLike;
            attribute::dictionary(inner, list).to_raw()
        })
        .collect();
    // SAFETY: the elements are readable for their count during the call.
    unsafe {
        Attribute::from_raw(mlirArrayAttrGet(
            inner.context().to_raw(),
            dictionaries.len() as isize,
            dictionaries.as_ptr(),
        ))
    }
}

/// Whether an operation is the function `main`.
///
/// # Safety
/// `operation` must be live and its context locked.
unsafe fn is_entry(operation: mlir_sys::MlirOperation) -> bool {
    // SAFETY: the caller's promise; the attribute's kind is checked before it is read.
    unsafe {
        let name = mlir_sys::mlirOperationGetAttributeByName(operation, string_ref(b"sym_name"));
        if name.ptr.is_null() || !mlir_sys::mlirAttributeIsAString(name) {
            return false;
        }
        let name = mlir_sys::mlirStringAttrGetValue(name);
        std::slice::from_raw_parts(name.data.cast::<u8>(), name.length) == b"main"
    }
}

/// Whether a module has more than one custom call.
fn several_custom_calls(graph: &Graph<'_>) -> bool {
    let mut count = 0;
    let mut pending: Vec<&Block<'_>> = graph.functions.iter().map(|f| &f.body).collect();
    while let Some(block) = pending.pop() {
        for operation in &block.operations {
            count += usize::from(matches!(operation.kind, OperationKind::CustomCall(_)));
            pending.extend(&operation.regions);
        }
        if count > 1 {
            return true;
        }
    }
    false
}

fn argument(block: &MlirBlock<'_>, index: usize) -> Result<MlirValue, Error> {
    block
        .argument(index)
        .map(|argument| argument.to_raw())
        .map_err(|_| Error::UndefinedValue {
            place: "a block has fewer arguments than its types".into(),
            value: index as ValueId,
        })
}

fn result_id(operation: &Operation<'_>, index: usize) -> Result<ValueId, Error> {
    operation
        .first_result
        .checked_add(index as ValueId)
        .ok_or(Error::RedefinedValue {
            value: operation.first_result,
        })
}

fn set_attribute(module: &melior::ir::Module<'_>, name: Identifier<'_>, value: Attribute<'_>) {
    use melior::ir::AttributeLike;
    // SAFETY: module, name and value belong to one live context, whose lock is held.
    unsafe {
        mlir_sys::mlirOperationSetAttributeByName(
            mlirModuleGetOperation(module.to_raw()),
            mlir_sys::mlirIdentifierStr(name.to_raw()),
            value.to_raw(),
        );
    }
}

/// MLIR keeps dense booleans as bits, low bit first.
fn pack_bits(bytes: &[u8]) -> Vec<u8> {
    // A single element, true or false, is a splat, and MLIR writes a true one as a full byte.
    if let [byte] = bytes {
        return vec![if *byte == 0 { 0 } else { 0xff }];
    }
    bytes
        .chunks(8)
        .map(|chunk| {
            chunk.iter().enumerate().fold(0, |bits, (index, byte)| {
                bits | (u8::from(*byte != 0) << index)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackendConfig, CustomCall, EmittedCall, EmittedType, Limits, Output, Parameter};

    fn f32(dimensions: &[i64]) -> Type {
        Type::tensor(ElementType::F32, dimensions)
    }

    fn call(target: &[u8]) -> OperationKind<'_> {
        OperationKind::CustomCall(CustomCall {
            call_target_name: target,
            api_version: 4,
            attributes: vec![],
            backend_config: None,
            mlir_attributes: vec![],
        })
    }

    fn operation<'a>(
        kind: OperationKind<'a>,
        operands: &[ValueId],
        first_result: ValueId,
        results: &[Type],
    ) -> Operation<'a> {
        Operation {
            kind,
            operands: operands.to_vec(),
            first_result,
            results: results.to_vec(),
            regions: vec![],
        }
    }

    fn generic(name: &str) -> OperationKind<'_> {
        OperationKind::Generic {
            name: name.as_bytes(),
            attributes: vec![],
        }
    }

    /// A function `main` whose parameters are numbered from 0.
    fn main<'a>(
        parameters: &[Type],
        results: &[Type],
        operations: Vec<Operation<'a>>,
        outputs: &[ValueId],
    ) -> Function<'a> {
        Function {
            name: b"main",
            private: false,
            parameters: parameters
                .iter()
                .enumerate()
                .map(|(index, r#type)| Parameter {
                    value: index as ValueId,
                    r#type: r#type.clone(),
                    attributes: vec![],
                })
                .collect(),
            results: results
                .iter()
                .map(|r#type| Output {
                    r#type: r#type.clone(),
                    attributes: vec![],
                })
                .collect(),
            body: Block {
                operations,
                outputs: outputs.to_vec(),
                ..Block::default()
            },
        }
    }

    fn module(functions: Vec<Function<'_>>) -> Result<Module, Error> {
        let graph = Graph {
            functions,
            ..Graph::default()
        };
        Module::build(&Context::new(Limits::default()), &graph)
    }

    fn text(function: Function<'_>) -> String {
        module(vec![function]).unwrap().to_text()
    }

    fn refusal(function: Function<'_>) -> String {
        module(vec![function]).unwrap_err().to_string()
    }

    #[test]
    fn a_custom_call_stands_in_a_function_with_its_types() {
        let function = main(
            &[f32(&[2, 3]), Type::tensor(ElementType::S32, &[])],
            &[f32(&[3])],
            vec![operation(call(b"kernel"), &[0, 1], 2, &[f32(&[3])])],
            &[2],
        );
        assert_eq!(
            text(function),
            r#"module {
  func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<i32>) -> tensor<3xf32> {
    %0 = "stablehlo.custom_call"(%arg0, %arg1) {api_version = 4 : i32, call_target_name = "kernel"} : (tensor<2x3xf32>, tensor<i32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"#
        );
    }

    #[test]
    fn a_call_without_operands_or_results_is_emitted() {
        let function = main(&[], &[], vec![operation(call(b"k"), &[], 0, &[])], &[]);
        assert!(text(function).contains(
            r#""stablehlo.custom_call"() {api_version = 4 : i32, call_target_name = "k"} : () -> ()"#
        ));
    }

    #[test]
    fn a_call_takes_200_operands_and_tokens() {
        let mut parameters = vec![f32(&[1]); 199];
        parameters.push(Type::Token);
        let operands: Vec<_> = (0..200).collect();
        let function = main(
            &parameters,
            &[Type::Token],
            vec![operation(
                call(b"k"),
                &operands,
                200,
                &[f32(&[1]), Type::Token],
            )],
            &[201],
        );
        let module = module(vec![function]).unwrap();
        let calls = module.custom_calls();
        assert_eq!(calls[0].operands.len(), 200);
        assert_eq!(calls[0].operands[199], EmittedType::Known(Type::Token));
        assert_eq!(
            calls[0].results,
            [
                EmittedType::Known(f32(&[1])),
                EmittedType::Known(Type::Token)
            ]
        );
    }

    #[test]
    fn what_was_emitted_reads_back_as_data() {
        let function = main(
            &[f32(&[2])],
            &[f32(&[2])],
            vec![
                operation(
                    OperationKind::CustomCall(CustomCall {
                        call_target_name: b"a\0\xff",
                        api_version: 4,
                        attributes: vec![
                            NamedText {
                                name: b"n",
                                text: b"1 : i64",
                            },
                            NamedText {
                                name: b"f",
                                text: b"true",
                            },
                        ],
                        backend_config: None,
                        mlir_attributes: vec![NamedText {
                            name: b"has_side_effect",
                            text: b"true",
                        }],
                    }),
                    &[0],
                    1,
                    &[f32(&[2])],
                ),
                operation(
                    OperationKind::CustomCall(CustomCall {
                        call_target_name: b"b",
                        api_version: 2,
                        attributes: vec![],
                        backend_config: Some(b"\xfe"),
                        mlir_attributes: vec![],
                    }),
                    &[1],
                    2,
                    &[f32(&[2])],
                ),
            ],
            &[2],
        );
        let types = vec![EmittedType::Known(f32(&[2]))];
        assert_eq!(
            module(vec![function]).unwrap().custom_calls(),
            [
                EmittedCall {
                    function: b"main".to_vec(),
                    call_target_name: b"a\0\xff".to_vec(),
                    api_version: 4,
                    backend_config: BackendConfig::Dictionary(vec![
                        (b"f".to_vec(), b"true".to_vec()),
                        (b"n".to_vec(), b"1 : i64".to_vec()),
                    ]),
                    mlir_attributes: vec![(b"has_side_effect".to_vec(), b"true".to_vec())],
                    operands: types.clone(),
                    results: types.clone(),
                },
                EmittedCall {
                    function: b"main".to_vec(),
                    call_target_name: b"b".to_vec(),
                    api_version: 2,
                    backend_config: BackendConfig::Bytes(b"\xfe".to_vec()),
                    mlir_attributes: vec![],
                    operands: types.clone(),
                    results: types,
                },
            ]
        );
    }

    #[test]
    fn regions_see_the_values_around_them_and_custom_calls_inside_them_are_found() {
        let predicate = Type::tensor(ElementType::Pred, &[]);
        let branch = |target: &'static [u8], result| Block {
            operations: vec![operation(call(target), &[1], result, &[f32(&[2])])],
            outputs: vec![result],
            ..Block::default()
        };
        let function = main(
            &[predicate, f32(&[2])],
            &[f32(&[2])],
            vec![Operation {
                kind: generic("stablehlo.if"),
                operands: vec![0],
                first_result: 4,
                results: vec![f32(&[2])],
                regions: vec![branch(b"then", 2), branch(b"else", 3)],
            }],
            &[4],
        );
        let module = module(vec![function]).unwrap();
        let targets: Vec<_> = module
            .custom_calls()
            .into_iter()
            .map(|call| call.call_target_name)
            .collect();
        assert_eq!(targets, [b"then".to_vec(), b"else".to_vec()]);
        assert!(module.to_text().contains("\"stablehlo.return\"(%1)"));
    }

    #[test]
    fn region_arguments_and_a_terminator_of_another_dialect_are_emitted() {
        let function = main(
            &[f32(&[4])],
            &[f32(&[4])],
            vec![Operation {
                kind: generic("sdy.manual_computation"),
                operands: vec![0],
                first_result: 3,
                results: vec![f32(&[4])],
                regions: vec![Block {
                    arguments: vec![(1, f32(&[2]))],
                    operations: vec![operation(call(b"local"), &[1], 2, &[f32(&[2])])],
                    terminator: Some(b"sdy.return"),
                    outputs: vec![2],
                }],
            }],
            &[3],
        );
        let text = text(function);
        assert!(text.contains("^bb0(%arg1: tensor<2xf32>):"), "{text}");
        assert!(
            text.contains("\"sdy.return\"(%1) : (tensor<2xf32>) -> ()"),
            "{text}"
        );
    }

    #[test]
    fn functions_call_each_other_and_can_be_private() {
        let caller = main(
            &[f32(&[2])],
            &[f32(&[2])],
            vec![operation(
                OperationKind::Call(b"helper \"x\""),
                &[0],
                1,
                &[f32(&[2])],
            )],
            &[1],
        );
        let mut helper = main(&[f32(&[2])], &[f32(&[2])], vec![], &[0]);
        helper.name = b"helper \"x\"";
        helper.private = true;
        let text = module(vec![caller, helper]).unwrap().to_text();
        assert!(text.contains(r#"call @"helper \22x\22"(%arg0)"#), "{text}");
        assert!(
            text.contains(r#"func.func private @"helper \22x\22""#),
            "{text}"
        );
    }

    #[test]
    fn parameters_results_and_the_module_carry_attributes() {
        let mut function = main(&[f32(&[2])], &[f32(&[2])], vec![], &[0]);
        function.parameters[0].attributes = vec![NamedText {
            name: b"sdy.sharding",
            text: b"#sdy.sharding<@mesh, [{\"x\"}]>",
        }];
        function.results[0].attributes = vec![NamedText {
            name: b"jax.result_info",
            text: b"\"out\"",
        }];
        let graph = Graph {
            name: Some(b"net"),
            attributes: vec![NamedText {
                name: b"mhlo.num_partitions",
                text: b"2 : i32",
            }],
            meshes: vec![NamedText {
                name: b"mesh",
                text: b"#sdy.mesh<[\"x\"=2]>",
            }],
            functions: vec![function],
        };
        let text = Module::build(&Context::new(Limits::default()), &graph)
            .unwrap()
            .to_text();
        assert!(
            text.contains("module @net attributes {mhlo.num_partitions = 2 : i32}"),
            "{text}"
        );
        assert!(
            text.contains("{sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}]>}"),
            "{text}"
        );
        assert!(text.contains("{jax.result_info = \"out\"}"), "{text}");
    }

    #[test]
    fn constants_of_every_element_type_keep_their_bytes() {
        for element in ElementType::ALL {
            for dimensions in [&[][..], &[0], &[3], &[2, 9]] {
                let count = dimensions.iter().product::<i64>() as usize;
                let bytes = vec![1; count * element.byte_size()];
                let r#type = Type::tensor(element, dimensions);
                let function = main(
                    &[],
                    std::slice::from_ref(&r#type),
                    vec![operation(
                        OperationKind::Constant(&bytes),
                        &[],
                        0,
                        std::slice::from_ref(&r#type),
                    )],
                    &[0],
                );
                assert!(module(vec![function]).is_ok(), "{type}");
            }
        }
    }

    #[test]
    fn a_constant_prints_its_elements_in_row_major_order() {
        let bytes: Vec<_> = (0..6).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let function = main(
            &[],
            &[f32(&[2, 3])],
            vec![operation(
                OperationKind::Constant(&bytes),
                &[],
                0,
                &[f32(&[2, 3])],
            )],
            &[0],
        );
        assert!(text(function).contains(
            "dense<[[0.000000e+00, 1.000000e+00, 2.000000e+00], [3.000000e+00, 4.000000e+00, 5.000000e+00]]> : tensor<2x3xf32>"
        ));
    }

    #[test]
    fn boolean_constants_take_a_byte_an_element() {
        let predicates = Type::tensor(ElementType::Pred, &[9]);
        let bytes = [1, 0, 0, 1, 0, 0, 0, 0, 1];
        let function = main(
            &[],
            std::slice::from_ref(&predicates),
            vec![operation(
                OperationKind::Constant(&bytes),
                &[],
                0,
                std::slice::from_ref(&predicates),
            )],
            &[0],
        );
        assert!(text(function).contains(
            "dense<[true, false, false, true, false, false, false, false, true]> : tensor<9xi1>"
        ));
    }

    #[test]
    fn a_constant_of_the_wrong_size_is_refused() {
        let function = main(
            &[],
            &[f32(&[2])],
            vec![operation(
                OperationKind::Constant(b"12345"),
                &[],
                0,
                &[f32(&[2])],
            )],
            &[0],
        );
        assert_eq!(
            refusal(function),
            "constant: 8 bytes make a tensor<2xf32>, and there are 5"
        );
    }

    #[test]
    fn bytes_that_an_element_type_of_less_than_a_byte_cannot_hold_are_refused() {
        for (element, byte, holds) in [
            (ElementType::Pred, 1, true),
            (ElementType::Pred, 2, false),
            (ElementType::U4, 15, true),
            (ElementType::U4, 16, false),
            (ElementType::S4, 0xf8, true),
            (ElementType::S4, 8, false),
            (ElementType::U2, 4, false),
            (ElementType::S2, 0xfe, true),
            (ElementType::S8, 0xff, true),
        ] {
            let r#type = Type::tensor(element, &[2]);
            let bytes = [0, byte];
            let constant = operation(
                OperationKind::Constant(&bytes),
                &[],
                0,
                std::slice::from_ref(&r#type),
            );
            let function = main(&[], std::slice::from_ref(&r#type), vec![constant], &[0]);
            let built = module(vec![function]);
            assert_eq!(built.is_ok(), holds, "{element:?} {byte}");
            if let Err(error) = built {
                assert_eq!(
                    error.to_string(),
                    format!(
                        "constant: element 1 is the byte {byte}, which an {} cannot hold",
                        element.text()
                    )
                );
            }
        }
    }

    #[test]
    fn the_modules_name_is_no_attribute() {
        let graph = Graph {
            attributes: vec![NamedText {
                name: b"sym_name",
                text: b"\"b\"",
            }],
            ..Graph::default()
        };
        assert_eq!(
            Module::build(&Context::new(Limits::default()), &graph).unwrap_err().to_string(),
            "module_attributes: the attribute name \"sym_name\" is reserved; use the module's name; its visibility has no meaning"
        );
    }

    #[test]
    fn a_value_used_before_its_definition_is_refused() {
        let function = main(
            &[],
            &[f32(&[2])],
            vec![operation(call(b"k"), &[1], 0, &[f32(&[2])])],
            &[0],
        );
        assert_eq!(
            refusal(function),
            "an operand of stablehlo.custom_call: value 1 is used before it is defined or outside the region that defines it"
        );
    }

    #[test]
    fn a_value_of_a_region_cannot_be_used_outside_it() {
        let function = main(
            &[f32(&[2])],
            &[f32(&[2])],
            vec![Operation {
                kind: generic("stablehlo.case"),
                operands: vec![0],
                first_result: 2,
                results: vec![f32(&[2])],
                regions: vec![Block {
                    arguments: vec![(1, f32(&[2]))],
                    outputs: vec![1],
                    ..Block::default()
                }],
            }],
            &[1],
        );
        assert_eq!(
            refusal(function),
            "the results of main: value 1 is used before it is defined or outside the region that defines it"
        );
    }

    #[test]
    fn a_function_whose_results_differ_from_its_type_is_refused_in_mlirs_words() {
        let function = main(&[f32(&[2])], &[f32(&[3])], vec![], &[0]);
        assert_eq!(
            refusal(function),
            "MLIR refuses the module: type of return operand 0 ('tensor<2xf32>') doesn't match function result type ('tensor<3xf32>') in function @main"
        );
    }

    #[test]
    fn two_functions_of_one_name_and_a_call_of_none_are_refused() {
        let function = || main(&[], &[], vec![], &[]);
        assert_eq!(
            module(vec![function(), function()])
                .unwrap_err()
                .to_string(),
            "the function name \"main\" names two functions; give each function its own name"
        );
        let caller = main(
            &[],
            &[],
            vec![operation(OperationKind::Call(b"f"), &[], 0, &[])],
            &[],
        );
        assert_eq!(
            refusal(caller),
            "the call of @f in @main: the module has no such function; give it with the graph"
        );
    }

    #[test]
    fn of_many_faulty_custom_calls_the_first_16_are_told_and_the_others_counted() {
        let wrong = CustomCall {
            call_target_name: b"k",
            api_version: 5,
            attributes: vec![],
            backend_config: None,
            mlir_attributes: vec![],
        };
        let operations = (0..1_000)
            .map(|_| operation(OperationKind::CustomCall(wrong.clone()), &[], 0, &[]))
            .collect();
        let error = module(vec![main(&[], &[], operations, &[])]).unwrap_err();
        assert_eq!(error.faults().len(), 16);
        let text = error.to_string();
        assert!(
            text.starts_with("1000 faults:\n  1. api_version: 5 is not"),
            "{text}"
        );
        assert!(text.ends_with("\n  and 984 more"), "{text}");
    }

    /// `reduce` of values 0 and 1 to value 5, in whose region values 2 and 3 become 4 by a call of `sum`.
    fn reduce(result: Type) -> Operation<'static> {
        let scalar = || f32(&[]);
        Operation {
            kind: generic("stablehlo.reduce"),
            operands: vec![0, 1],
            first_result: 5,
            results: vec![scalar()],
            regions: vec![Block {
                arguments: vec![(2, scalar()), (3, scalar())],
                operations: vec![operation(
                    OperationKind::Call(b"sum"),
                    &[2, 3],
                    4,
                    &[result],
                )],
                outputs: vec![4],
                terminator: None,
            }],
        }
    }

    fn sum() -> Function<'static> {
        let scalar = || f32(&[]);
        let add = operation(generic("stablehlo.add"), &[0, 1], 2, &[scalar()]);
        let mut sum = main(&[scalar(), scalar()], &[scalar()], vec![add], &[2]);
        sum.name = b"sum";
        sum
    }

    #[test]
    fn a_region_of_an_operation_that_mlir_does_not_know_calls_functions() {
        let parameters = [f32(&[4]), f32(&[])];
        let caller = main(&parameters, &[f32(&[])], vec![reduce(f32(&[]))], &[5]);
        let text = module(vec![caller, sum()]).unwrap().to_text();
        assert!(text.contains("call @sum(%arg2, %arg3)"), "{text}");
    }

    #[test]
    fn a_call_in_a_region_fits_its_function() {
        let parameters = [f32(&[4]), f32(&[])];
        let caller = main(&parameters, &[f32(&[])], vec![reduce(f32(&[2]))], &[5]);
        assert_eq!(
            module(vec![caller.clone(), sum()]).unwrap_err().to_string(),
            "the call of @sum in @main: it gives (tensor<f32>), and the call expects (tensor<2xf32>)"
        );
        assert_eq!(
            module(vec![caller]).unwrap_err().to_string(),
            "the call of @sum in @main: the module has no such function; give it with the graph"
        );
        let mut unary = sum();
        unary.parameters.pop();
        unary.body.operations[0].operands = vec![0, 0];
        let caller = main(&parameters, &[f32(&[])], vec![reduce(f32(&[]))], &[5]);
        assert_eq!(
            module(vec![caller, unary]).unwrap_err().to_string(),
            "the call of @sum in @main: it takes (tensor<f32>), and the call gives (tensor<f32>, tensor<f32>)"
        );
    }

    #[test]
    fn regions_in_regions_call_functions_beside_custom_calls() {
        let function = main(
            &[f32(&[4]), f32(&[])],
            &[f32(&[])],
            vec![Operation {
                kind: generic("sdy.manual_computation"),
                operands: vec![],
                first_result: 8,
                results: vec![f32(&[])],
                regions: vec![Block {
                    operations: vec![
                        reduce(f32(&[])),
                        operation(call(b"k"), &[5], 6, &[f32(&[])]),
                        operation(OperationKind::Call(b"sum"), &[5, 6], 7, &[f32(&[])]),
                    ],
                    terminator: Some(b"sdy.return"),
                    outputs: vec![7],
                    ..Block::default()
                }],
            }],
            &[8],
        );
        let module = module(vec![function, sum()]).unwrap();
        assert_eq!(module.to_text().matches("call @sum(").count(), 2);
        assert_eq!(module.custom_calls()[0].call_target_name, b"k");
        assert_eq!(module.duplicate().to_text(), module.to_text());
    }

    #[test]
    fn an_attribute_of_a_module_has_a_dialect_whatever_its_regions_call() {
        let parameters = [f32(&[4]), f32(&[])];
        let caller = main(&parameters, &[f32(&[])], vec![reduce(f32(&[]))], &[5]);
        let graph = Graph {
            attributes: vec![NamedText {
                name: b"note",
                text: b"1",
            }],
            functions: vec![caller, sum()],
            ..Graph::default()
        };
        assert_eq!(
            Module::build(&Context::new(Limits::default()), &graph)
                .unwrap_err()
                .to_string(),
            "module_attributes: \"note\": the name has no dialect; a module takes names such as mhlo.num_partitions"
        );
    }

    #[test]
    fn the_faults_of_all_custom_calls_and_parameters_come_back_together() {
        let wrong = |name: &'static [u8]| {
            operation(
                OperationKind::CustomCall(CustomCall {
                    call_target_name: name,
                    api_version: 4,
                    attributes: vec![NamedText {
                        name: b"k",
                        text: b"0.5 : f16",
                    }],
                    backend_config: None,
                    mlir_attributes: vec![],
                }),
                &[],
                9,
                &[],
            )
        };
        let mut function = main(&[f32(&[2])], &[], vec![wrong(b"one"), wrong(b"two")], &[]);
        function.parameters[0].attributes = vec![NamedText {
            name: b"layout",
            text: b"unit",
        }];
        assert_eq!(
            refusal(function),
            "3 faults:\
             \n  1. parameter_attributes: \"layout\": the name has no dialect; parameters and results take \
             names such as sdy.sharding and jax.buffer_donor; what is for a kernel goes on its custom call \
             (of parameter 0 of @main)\
             \n  2. attributes: \"k\": a float of type f16; a handler takes floats of type f32 and f64, such \
             as 0.5 : f32 (in custom call 0 of @main, target \"one\")\
             \n  3. attributes: \"k\": a float of type f16; a handler takes floats of type f32 and f64, such \
             as 0.5 : f32 (in custom call 1 of @main, target \"two\")"
        );
    }

    #[test]
    fn regions_deeper_than_the_limit_are_refused_without_recursing_further() {
        let nest = |depth: usize| {
            let mut block = Block::default();
            for _ in 0..depth {
                block = Block {
                    operations: vec![Operation {
                        kind: generic("stablehlo.case"),
                        operands: vec![],
                        first_result: 0,
                        results: vec![],
                        regions: vec![block],
                    }],
                    ..Block::default()
                };
            }
            let mut function = main(&[], &[], vec![], &[]);
            function.body = block;
            function
        };
        let on_a_small_stack = |depth| {
            std::thread::Builder::new()
                .stack_size(320 * 1024)
                .spawn(move || module(vec![nest(depth)]).map(|module| module.to_text().len()))
                .unwrap()
                .join()
                .unwrap()
        };
        assert!(on_a_small_stack(64).is_ok());
        assert_eq!(
            on_a_small_stack(65).unwrap_err().to_string(),
            "regions nest deeper than 64; move inner computations into functions"
        );
    }

    #[test]
    fn a_hundred_thousand_operations_build_print_and_drop() {
        let count = 100_000;
        let operations = (0..count)
            .map(|index| operation(generic("stablehlo.tanh"), &[index], index + 1, &[f32(&[2])]))
            .collect();
        let function = main(&[f32(&[2])], &[f32(&[2])], operations, &[count]);
        let module = module(vec![function]).unwrap();
        assert_eq!(module.operation_count(), 100_002);
        assert!(module.to_bytecode().len() < module.to_text().len());
    }

    #[test]
    fn a_module_outlives_the_handle_to_its_context_and_moves_between_threads() {
        let context = Context::new(Limits::default());
        let graph = Graph {
            functions: vec![main(&[], &[], vec![], &[])],
            ..Graph::default()
        };
        let module = Module::build(&context, &graph).unwrap();
        drop(context);
        let text = std::thread::spawn(move || module.to_text()).join().unwrap();
        assert!(text.contains("func.func @main()"));
    }

    #[test]
    fn a_module_reads_back_from_its_bytecode_and_its_text_as_it_was() {
        let function = main(
            &[f32(&[2]), Type::Token],
            &[f32(&[2])],
            vec![operation(call(b"k\0\xff\""), &[0, 1], 2, &[f32(&[2])])],
            &[2],
        );
        let module = module(vec![function]).unwrap();
        for source in [module.to_bytecode(), module.to_text().into_bytes()] {
            let read = Module::parse(&Context::new(Limits::default()), &source).unwrap();
            assert_eq!(read.to_text(), module.to_text());
            assert_eq!(read.custom_calls(), module.custom_calls());
        }
        assert!(Module::parse(&Context::new(Limits::default()), b"module {").is_err());
    }

    #[test]
    fn donated_parameters_are_marked_beside_the_attributes_that_they_have() {
        let mut function = main(&[f32(&[2]), f32(&[2])], &[f32(&[2])], vec![], &[0]);
        function.parameters[1].attributes = vec![NamedText {
            name: b"my.mark",
            text: b"1 : i32",
        }];
        let module = module(vec![function]).unwrap();
        module.donate(&[1]).unwrap();
        module.donate(&[1]).unwrap();
        assert!(
            module.to_text().contains(
                "(%arg0: tensor<2xf32>, %arg1: tensor<2xf32> {jax.buffer_donor = true, my.mark = 1 : i32})"
            ),
            "{}",
            module.to_text()
        );
        assert_eq!(
            module.donate(&[2]).unwrap_err().to_string(),
            "donate: parameter 2 is not one of the 2 of main"
        );
    }

    #[test]
    fn bytecode_begins_with_mlirs_magic_number() {
        let module = module(vec![main(&[], &[], vec![], &[])]).unwrap();
        assert_eq!(&module.to_bytecode()[..4], b"ML\xefR");
    }
}
