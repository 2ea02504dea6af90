defmodule EXLA.CustomCall.TelemetryTest do
  # Not async: there is one sink for the whole VM.
  use ExUnit.Case, async: false
  doctest EXLA.CustomCall.Telemetry

  alias EXLA.CustomCall.Telemetry

  defmodule Sink do
    def execute(name, measurements, metadata) do
      send(:telemetry_test, {name, measurements, metadata})
    end
  end

  setup do
    Process.register(self(), :telemetry_test)
    Telemetry.put_module(Sink)
    on_exit(fn -> Telemetry.put_module(nil) end)
  end

  test "a span is an event before and one after, with the duration" do
    assert Telemetry.span(:compile, %{client: 1}, fn -> {:ok, 2} end) == {:ok, 2}

    assert_received {[:exla_custom_call, :compile, :start],
                     %{monotonic_time: start, system_time: _}, %{client: 1}}

    assert_received {[:exla_custom_call, :compile, :stop],
                     %{duration: duration, monotonic_time: stop}, %{client: 1} = metadata}

    assert stop == start + duration
    refute is_map_key(metadata, :error)
  end

  test "an error is in the metadata of the stop" do
    Telemetry.span(:run, %{}, fn -> {:error, :no} end)
    assert_received {[:exla_custom_call, :run, :stop], _, %{error: :no}}
  end

  test "an exception is an event, and passes on" do
    assert_raise RuntimeError, "no", fn -> Telemetry.span(:run, %{}, fn -> raise "no" end) end

    assert_received {[:exla_custom_call, :run, :exception], %{duration: _},
                     %{kind: :error, reason: %RuntimeError{}, stacktrace: [_ | _]}}

    assert catch_throw(Telemetry.span(:run, %{}, fn -> throw(:ball) end)) == :ball
    assert_received {[:exla_custom_call, :run, :exception], _, %{kind: :throw, reason: :ball}}
  end

  test "a module without execute/3 is refused" do
    assert_raise ArgumentError,
                 "expected a module with execute(event_name, measurements, metadata), got: Nope",
                 fn -> Telemetry.put_module(Nope) end
  end

  defmodule Raising do
    def execute([_, :cache, :eviction], _, _), do: raise("no")
    def execute(_, _, _), do: :ok
  end

  test "a module that raises harms its caller, not the cache" do
    Telemetry.put_module(Raising)
    name = :"telemetry_#{System.unique_integer([:positive])}"
    pid = start_supervised!({EXLA.CustomCall.Cache, name: name, max_entries: 1})
    fetch = &EXLA.CustomCall.Cache.fetch(name, &1, nil, fn -> {:ok, 1} end)
    assert fetch.(:a) == {:ok, 1}
    assert_raise RuntimeError, "no", fn -> fetch.(:b) end
    assert Process.alive?(pid)
    assert fetch.(:b) == {:ok, 1}
  end

  test "without a module nothing is reported" do
    Telemetry.put_module(nil)
    assert Telemetry.span(:run, %{}, fn -> 1 end) == 1
    assert Telemetry.event([:cache, :hit], %{count: 1}) == :ok
    refute_received {_, _, _}
  end
end
