"""A round as an operator reads it: trees, the accepted path, slots."""

from __future__ import annotations

import json

import numpy as np
import pytest

from client.cli import main
from client.round_json import round_json
from client.round_text import round_text, slot_ranges, tree_lines
from client.vocabulary import Vocabulary
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import WireError
from paceline.round_codec import encode_array
from paceline.tree import DraftTree
from paceline.v1 import verify_pb2

NUMBERS = Vocabulary(None)


def target_view() -> verify_pb2.RoundView:
    """Two requests: a tree of four nodes with two drafts accepted, and a single node."""
    verify = verify_pb2.VerifyInput(
        session=[7, 0],
        round=[3, 0],
        base_committed_len=[20, 9],
        num_tokens_per_req=[4, 1],
        draft_token=[100, 101, 102, 103, 500],
        parents=[-1, 0, 0, 2, -1],
        positions=[20, 21, 21, 22, 9],
        retrieve_next_token=encode_array(np.array([[1, -1, 3, -1], [-1, -1, -1, -1]], np.int32)),
    )
    output = verify_pb2.VerifyOutput(
        session=[7, 0],
        round=[3, 0],
        verified_id=[102, 103, 104, 501],
        accept_length=[2, 0],
        accept_length_cpu=[2, 0],
        accepted_indices=[0, 2, 3, 4],
    )
    extend = verify_pb2.ExtendInput(
        session=[7],
        round=[4],
        base_committed_len=[20],
        verified_id=[102, 103, 104],
        accept_length=[2],
        num_tokens_per_req=[3],
        num_tokens_for_logprob_per_req=[1],
        num_steps=[5],
        eagle_topk=[4],
        num_draft_tokens=[16],
        hidden_states=encode_array(np.zeros((3, 2), np.float32)),
        kv_indptr=[0, 5],
        kv_indices=[0, 1, 2, 32, 33],
    )
    return verify_pb2.RoundView(
        step=12,
        time_unix_ms=1,
        verify_input=verify,
        verify_output=output,
        extend_input=extend,
        timings_ms={"forward": 30.5, "plan": 0.25},
    )


def test_a_tree_is_drawn_with_children_below_their_parent_and_the_accepted_path_marked():
    tree = DraftTree(np.array([1, 2, 3, 4, 5]), np.array([-1, 0, 0, 1, 2]))
    assert tree_lines(tree, frozenset({0, 2}), NUMBERS) == [
        "* 1",
        "  ├─ 2",
        "  │  └─ 4",
        "* └─ 3",
        "     └─ 5",
    ]


def test_a_targets_round_shows_trees_walks_rows_and_slots():
    text = round_text(target_view(), NUMBERS)
    assert "forward 30.50 ms  plan 0.25 ms" in text
    assert "session 7, round 3: 20 committed, 4 nodes, 2 accepted, then 104" in text
    assert "session 0, round 0: 9 committed, 1 nodes, 0 accepted, then 501" in text
    assert "  * └─ 102" in text
    assert "    ├─ 101" in text
    assert "session 7, round 4: 3 rows from position 20 on, asks for a tree of (5, 4, 16)" in text
    assert "kv_indptr 0..5  kv_indices 0-2 32-33" in text


def test_a_drafts_round_has_trees_without_a_walk():
    view = target_view()
    view.ClearField("verify_output")
    text = round_text(view, NUMBERS)
    assert "session 7, round 3: 20 committed, 4 nodes\n" in text
    assert "*" not in text


def test_a_round_without_a_proposals_columns_is_shown_without_its_shape():
    view = target_view()
    for name in ("num_tokens_for_logprob_per_req", "num_steps", "eagle_topk", "num_draft_tokens", "kv_indptr"):
        view.extend_input.ClearField(name)
    assert "session 7, round 4: 3 rows from position 20 on\n" in round_text(view, NUMBERS)


def test_a_service_without_a_round_says_so():
    assert round_text(verify_pb2.RoundView(), NUMBERS) == "no round yet"


def test_a_view_whose_parts_disagree_is_refused():
    view = target_view()
    view.verify_output.accepted_indices.pop()
    with pytest.raises(WireError, match="verify_output"):
        round_text(view, NUMBERS)
    view = target_view()
    view.extend_input.num_tokens_per_req[0] = 4
    with pytest.raises(WireError, match="extend_input"):
        round_text(view, NUMBERS)


def test_json_has_links_as_lists_and_features_as_a_shape():
    document = json.loads(json.dumps(round_json(target_view())))
    assert document["verify_input"]["retrieve_next_token"] == [[1, -1, 3, -1], [-1, -1, -1, -1]]
    assert document["extend_input"]["hidden_states"] == {"dtype": "float32", "shape": [3, 2]}
    assert document["extend_input"]["kv_indices"] == [0, 1, 2, 32, 33]


@pytest.mark.parametrize(
    ("slots", "text"), [([], "none"), ([5], "5"), ([0, 1, 2], "0-2"), ([0, 1, 9, 3, 4], "0-1 9 3-4"), ([4, 3], "4 3")]
)
def test_slots_are_shown_as_runs_in_order_of_position(slots, text):
    assert slot_ranges(slots) == text


def test_tokens_are_shown_as_text_where_a_tokenizer_is_at_hand():
    assert Vocabulary.load(DEFAULT_MODEL_PATH).show(260) == "260 ' the'"
    assert Vocabulary.load("").show(28) == "28"


def test_inspecting_where_nothing_answers_is_exit_code_4(capsys):
    assert main(["inspect", "--target", "127.0.0.1:1"]) == 4
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err
