defmodule EXLA.CustomCall.Application do
  @moduledoc false

  use Application

  @impl true
  def start(_type, _args) do
    EXLA.CustomCall.Telemetry.put_module(Application.get_env(:exla_custom_call, :telemetry))

    EXLA.CustomCall.Warning.start()

    cache = Application.get_env(:exla_custom_call, :cache, [])

    children = [
      {EXLA.CustomCall.Cache, [name: EXLA.CustomCall.Cache] ++ cache},
      {Task.Supervisor, name: EXLA.CustomCall.ProcessHandler.Tasks},
      {DynamicSupervisor, name: EXLA.CustomCall.ProcessHandler.Supervisor}
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: EXLA.CustomCall.Supervisor)
  end
end
