/* A table of the XLA FFI handlers that a shared library has, so that whoever loads the library needs to know
 * nothing but its path. In Elixir:
 *
 *     {:ok, library} = EXLA.CustomCall.Library.load(client, "libkernels.so")
 *
 * For C11 and C++17, and for the headers of XLA FFI 0.1 or later (`jaxlib/include` in the jaxlib wheel). With the
 * handlers of a library in C++:
 *
 *     #include "xla/ffi/api/ffi.h"
 *     #include "exla_custom_call.h"
 *
 *     static xla::ffi::Error Negate(xla::ffi::Buffer<xla::ffi::F32> x,
 *                                   xla::ffi::ResultBuffer<xla::ffi::F32> y) {
 *       for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = -x.typed_data()[i];
 *       return xla::ffi::Error::Success();
 *     }
 *
 *     XLA_FFI_DEFINE_HANDLER_SYMBOL(NegateHandler, Negate,
 *                                   xla::ffi::Ffi::Bind()
 *                                       .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
 *                                       .Ret<xla::ffi::Buffer<xla::ffi::F32>>());
 *
 *     EXLA_CUSTOM_CALL_LIBRARY(
 *         EXLA_CUSTOM_CALL_HANDLER("com.example.negate", "Host", NegateHandler));
 *
 * and built with
 *
 *     g++ -std=c++17 -shared -fPIC -O2 -I.../jaxlib/include -I.../include -o libkernels.so kernels.cc
 *
 * In Rust `xla_ffi::library!` writes the same table.
 *
 * Several stages, and a state
 * ---------------------------
 *
 * XLA calls a handler in up to four stages: *instantiate* once for each custom call of a program, while it is
 * compiled; *prepare* and *initialize* before each execution, on platforms that have resources to ask for; and
 * *execute*. What the first returns is the handler's state, which XLA keeps until the executable is destroyed:
 *
 *     struct Plan {
 *       static xla::ffi::TypeId id;
 *       std::vector<float> factors;
 *     };
 *     xla::ffi::TypeId Plan::id = {};
 *     static constexpr auto kPlanInfo = xla::ffi::MakeTypeInfo<Plan>();
 *
 *     static xla::ffi::ErrorOr<std::unique_ptr<Plan>> MakePlan(std::string_view text);
 *     XLA_FFI_DEFINE_HANDLER_SYMBOL(PlanInstantiate, MakePlan,
 *                                   xla::ffi::Ffi::BindInstantiate().Attr<std::string_view>("plan"));
 *
 *     static xla::ffi::Error RunPlan(Plan* plan, ...);
 *     XLA_FFI_DEFINE_HANDLER_SYMBOL(PlanExecute, RunPlan,
 *                                   xla::ffi::Ffi::Bind().Ctx<xla::ffi::State<Plan>>()...);
 *
 *     EXLA_CUSTOM_CALL_STATE(kPlan, "com.example.Plan", &Plan::id, &kPlanInfo);
 *
 *     EXLA_CUSTOM_CALL_LIBRARY(
 *         EXLA_CUSTOM_CALL_STAGES("com.example.plan", "Host", PlanInstantiate, NULL, NULL, PlanExecute, 0,
 *                                 &kPlan));
 *
 * The loader registers the type before the handlers. A `type_id` that is 0 gets its value then, the same for all
 * plugins of the process. The name is of the whole process, so begin it with something of your own. States take
 * XLA FFI 0.2 or later.
 *
 * User data
 * ---------
 *
 * What the caller of one execution gives its handlers by a name (`user_data: %{"com.example.settings" => bytes}` in
 * Elixir) is an EXLA_CustomCall_UserData. XLA knows it by an id that is made from the name:
 *
 *     struct Settings : EXLA_CustomCall_UserData {
 *       static xla::ffi::TypeId id;
 *     };
 *     xla::ffi::TypeId Settings::id = EXLA_CUSTOM_CALL_USER_DATA_ID("com.example.settings");
 *
 *     static xla::ffi::Error Run(Settings* settings, ...);
 *     XLA_FFI_DEFINE_HANDLER_SYMBOL(RunHandler, Run,
 *                                   xla::ffi::Ffi::Bind().Ctx<xla::ffi::UserData<Settings>>()...);
 *
 * XLA fails the execution where it was not given. `data` lives until the execution is over, and is aligned in no
 * particular way. The id is the 64 bit FNV-1a hash of the name with the highest bits replaced by 01.
 *
 * The layout
 * ----------
 *
 * The library exports one symbol, `exla_custom_call_library`, which is constant data of the type
 * EXLA_CustomCall_Library: no code of the library runs before the table has been checked. All that it points to
 * is data, and for the handlers code, of shared libraries that stay loaded. Byte order, sizes and alignment are
 * those of the platform's C ABI; platforms of 64 bits only.
 *
 * Names are bytes with a length, not ended by a NUL: a target of 1 to 65,536 bytes, any of them; a platform of 1
 * to 256 printable ASCII characters, by its name in XLA's registry ("Host", "CUDA", "ROCM", in either case);
 * the name of a type of 1 to 4,096 bytes. There are at most 65,536 handlers, and none twice for one platform. A
 * loader registers the handlers that are for its platform: all of them, or none.
 *
 * `reserved` is 0 when written, and not read.
 *
 * Versions
 * --------
 *
 * EXLA_CUSTOM_CALL_ABI is 1, and changes only if the members below change. What is added later comes at the end of
 * a struct: `struct_size` and `handler_size` are the sizes that the library was built with, a loader
 * that knows less skips the rest, and one that knows more takes what is not there for 0. A library that is built
 * with this header thus needs no new build.
 */
#ifndef EXLA_CUSTOM_CALL_H_
#define EXLA_CUSTOM_CALL_H_

#include <stddef.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EXLA_CUSTOM_CALL_ABI 1

/* The type of a handler's state. 40 bytes. */
typedef struct EXLA_CustomCall_State {
  size_t struct_size;
  const char* name;
  size_t name_size;
  XLA_FFI_TypeId* type_id;                   /* read by the handlers; written by the loader where it is 0 */
  const struct XLA_FFI_TypeInfo* type_info;  /* with a deleter */
} EXLA_CustomCall_State;

/* A handler. 80 bytes. */
typedef struct EXLA_CustomCall_Handler {
  const char* target; /* call_target_name */
  size_t target_size;
  const char* platform;
  size_t platform_size;
  XLA_FFI_Handler* instantiate; /* NULL where there is none */
  XLA_FFI_Handler* prepare;     /* NULL where there is none */
  XLA_FFI_Handler* initialize;  /* NULL where there is none */
  XLA_FFI_Handler* execute;
  uint32_t traits; /* XLA_FFI_Handler_TraitsBits, besides those that the handler was defined with */
  uint32_t reserved;
  const EXLA_CustomCall_State* state; /* NULL where there is none, or where the library registers its type itself */
} EXLA_CustomCall_Handler;

/* What a handler finds as user data. 40 bytes. */
typedef struct EXLA_CustomCall_UserData {
  size_t struct_size;
  const char* name;
  size_t name_size;
  const void* data; /* not NULL unless `data_size` is 0 */
  size_t data_size;
} EXLA_CustomCall_UserData;

/* The id of user data by the bytes of its name. */
static inline int64_t exla_custom_call_user_data_id(const char* name, size_t name_size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < name_size; ++i) hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3u;
  return (int64_t)((hash & (UINT64_MAX >> 2)) | (uint64_t)1 << 62);
}

/* The XLA_FFI_TypeId of user data; `name` is a string literal. */
#define EXLA_CUSTOM_CALL_USER_DATA_ID(name) {exla_custom_call_user_data_id(name, sizeof(name) - 1)}

/* The table. 40 bytes. */
typedef struct EXLA_CustomCall_Library {
  size_t struct_size;
  uint32_t abi; /* EXLA_CUSTOM_CALL_ABI */
  uint32_t reserved;
  size_t handler_size;                     /* sizeof(EXLA_CustomCall_Handler) */
  size_t handler_count;
  const EXLA_CustomCall_Handler* handlers; /* NULL where there are none */
} EXLA_CustomCall_Library;

/* The symbol. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const EXLA_CustomCall_Library exla_custom_call_library;

/* Defines the table, of one or more handlers; once in a library. */
#define EXLA_CUSTOM_CALL_LIBRARY(...)                                                        \
  static const EXLA_CustomCall_Handler exla_custom_call_handlers_[] = {__VA_ARGS__};         \
  const EXLA_CustomCall_Library exla_custom_call_library = {                                 \
      sizeof(EXLA_CustomCall_Library),                                                       \
      EXLA_CUSTOM_CALL_ABI,                                                                  \
      0,                                                                                     \
      sizeof(EXLA_CustomCall_Handler),                                                       \
      sizeof(exla_custom_call_handlers_) / sizeof(exla_custom_call_handlers_[0]),            \
      exla_custom_call_handlers_}

/* A handler for the execute stage alone. `target` and `platform` are string literals. */
#define EXLA_CUSTOM_CALL_HANDLER(target, platform, execute) \
  EXLA_CUSTOM_CALL_STAGES(target, platform, NULL, NULL, NULL, execute, 0, NULL)

/* A handler for several stages: NULL for those that it has none for, and for `state` where it makes none. */
#define EXLA_CUSTOM_CALL_STAGES(target, platform, instantiate, prepare, initialize, execute, traits, state) \
  {target, sizeof(target) - 1, platform,  sizeof(platform) - 1, instantiate, prepare,                       \
   initialize, execute,         traits,    0,                     state}

/* Defines the constant `variable`, the type of a state. `name` is a string literal. */
#define EXLA_CUSTOM_CALL_STATE(variable, name, type_id, type_info)                        \
  static const EXLA_CustomCall_State variable = {sizeof(EXLA_CustomCall_State), name, \
                                                 sizeof(name) - 1, type_id, type_info}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EXLA_CUSTOM_CALL_H_ */
