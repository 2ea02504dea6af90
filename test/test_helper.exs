EXLA.CustomCall.TestHandlers.build!()
EXLA.CustomCall.XLA.start!()
ExUnit.start()
