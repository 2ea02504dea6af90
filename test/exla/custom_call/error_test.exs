defmodule EXLA.CustomCall.ErrorTest do
  use ExUnit.Case, async: true

  alias EXLA.CustomCall.Error

  test "what the caller wrote raises ArgumentError" do
    for kind <- [:argument, :name, :text, :spec, :type, :graph] do
      assert_raise ArgumentError, "no", fn -> Error.unwrap!({:error, Error.new(kind, "no")}) end
    end
  end

  test "what happens later raises EXLA.CustomCall.Error" do
    for kind <- [:plugin, :client, :library, :compile, :run] do
      assert_raise Error, "no", fn -> Error.unwrap!({:error, Error.new(kind, "no")}) end
    end
  end

  test "a value is unwrapped" do
    assert Error.unwrap!({:ok, 1}) == 1
    assert Error.unwrap!(:ok) == :ok
  end
end
