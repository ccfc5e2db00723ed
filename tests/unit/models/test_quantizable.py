"""Which parameters int4 and int8 leave in float32."""

from __future__ import annotations

from tests.support.architectures import tiny_config, tiny_model
from zoexport.models import (
    adapter_targets,
    experts,
    is_router,
    linear_names,
    route_experts,
    unquantized,
)


def test_narrow_layers_routers_and_experts_that_are_not_routed_keep_float32() -> None:
    model = tiny_model(tiny_config("jamba"))
    left = unquantized(model, "int4")
    narrow = [name for name in left if name.endswith("dt_proj.weight")]
    assert narrow and all(model.get_parameter(name).shape[1] < 32 for name in narrow)
    assert not set(narrow) & unquantized(model, "int8")
    assert any("experts" in name for name in left)
    assert any(name.endswith("router.weight") for name in left)
    assert "model.embed_tokens.weight" not in left
    assert not any(name.endswith("q_proj.weight") for name in left)


def test_weights_that_no_group_divides_keep_float32() -> None:
    config = tiny_config("llama")
    config.intermediate_size = 48
    model = tiny_model(config)
    layers = {name for name in unquantized(model, "int4") if name.endswith("_proj.weight")}
    assert layers == {f"model.layers.{number}.mlp.down_proj.weight" for number in range(2)}
    assert not layers & unquantized(model, "int8")


def test_routed_experts_are_quantized() -> None:
    experts.register()
    model = tiny_model(tiny_config("gpt_oss"))
    names = {name for name, _ in model.named_parameters() if ".experts." in name}
    assert names <= unquantized(model, "int4")
    route_experts(model)
    kept = names & unquantized(model, "int4")
    assert kept and all(name.endswith("_bias") for name in kept)


def test_a_router_that_is_a_linear_layer_keeps_float32_and_has_no_adapter() -> None:
    model = tiny_model(tiny_config("afmoe"))
    routers = [path for path in linear_names(model) if is_router(model, path)]
    assert routers and {f"{path}.weight" for path in routers} <= unquantized(model, "int8")
    assert not set(routers) & set(adapter_targets(model, "all-linear"))


def test_tables_of_tokens_for_each_layer_are_quantized() -> None:
    left = unquantized(tiny_model(tiny_config("gemma4_text")), "int4")
    assert not any("embed_tokens" in name for name in left)


def test_learned_positions_keep_float32() -> None:
    left = unquantized(tiny_model(tiny_config("opt")), "int8")
    assert any("embed_positions" in name for name in left)
    assert not any("embed_tokens" in name for name in left)
