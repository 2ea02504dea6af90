EXLA.CustomCall.TestHandlers.build!()
ExUnit.start()
