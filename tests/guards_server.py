"""The guards of the server, of keys and contexts, and of bytes that come in (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import also, off, out

A = "protocol/aggregator.py"
K = "protocol/keys.py"
U = "protocol/unmasking.py"
WIRE = "protocol/wire.py"
CONTEXT = "protocol/context.py"
GRAPH = "protocol/graph.py"
LAYOUT = "protocol/layout.py"
FRAMES = "protocol/frames.py"

TERMS = "_roster::test_a_server_that_shows_clients_different_models_or_terms_gets_no_shares"
WEAK = "_roster::test_a_server_whose_roster_is_weaker_than_the_policy_gets_no_shares"
THIN = "::test_a_client_that_was_shown_a_thinner_u2_is_left_out_and_its_neighbours_abort"
REPLAY = "_shares::test_a_server_that_replays_headers_votes_or_calls_of_another_attempt_is_refused"
INSIDE = "_shares::test_an_owner_whose_blob_holds_another_share_or_point_than_it_signed_is_named"
AROUND = "_shares::test_a_blob_under_the_right_key_opens_for_nothing_else_than_it_was_sealed_for"
OWNER = "_members::test_an_owner_whose_shares_give_another_secret_is_named_and_the_round_is_void"
DEALT = "_members::test_a_member_that_deals_too_few_or_twice_or_for_another_is_named"
VECTOR = "_members::test_a_vector_other_than_the_signed_one_or_a_second_one_is_refused_by_name"
BALLOT = "_members::test_votes_that_are_forged_doubled_or_of_outsiders_are_refused_by_name"
RELEASE = "_members::test_releases_that_are_doubled_or_of_outsiders_or_too_long_are_refused_by_name"
LOSSES = "_members::test_losses_beyond_the_tolerance_or_the_floor_end_before_anybody_votes"
VOID = "_streams::test_a_member_with_a_wrong_mask_or_weight_makes_the_round_void"
DISK = "_secrets::test_whoever_gets_the_servers_disk_and_ledger_finds_no_share_seed_or_mask"
ELSEWHERE = "_wire::test_a_member_whose_frames_belong_elsewhere_is_named"
UP = "_wire::test_a_member_that_sends_fields_of_other_sizes_is_named"
WORDS = "_wire::test_a_member_that_writes_to_the_operators_terminal_is_named"
DOWN = "_wire::test_a_server_that_sends_fields_of_other_sizes_is_refused"
EXPELLED = "_server::test_a_member_that_breaks_a_rule_is_expelled_by_name_and_the_others_are_summed"
LATE = "_server::test_a_vector_that_arrives_after_the_survivors_froze_is_in_no_sum"

CRYPTOGRAPHY = [
    out(REPLAY, K, ("message.encode() + lp(*fields)", "message.encode() + lp(*fields[1:])")),
    out(
        "_shares::test_a_signature_or_a_secret_of_one_purpose_serves_no_other",
        K,
        ("_LABEL + message.encode() + lp(*fields)", "_LABEL + lp(*fields)"),
    ),
    out(
        "_shares::test_a_signature_or_a_secret_of_one_purpose_serves_no_other",
        K,
        ('info = b"".join((_LABEL, name, *ids))', 'info = b"".join((_LABEL, *ids))'),
    ),
    out(
        "_shares::test_a_machine_put_back_to_a_snapshot_repeats_no_stream",
        K,
        ("salt=ctx, info=info", "salt=bytes(32), info=info"),
    ),
    out(
        "_shares::test_a_server_that_replays_blobs_of_another_attempt_gets_no_vector",
        K,
        ("salt=ctx, info=info", "salt=bytes(32), info=info"),
        (
            'b"".join((ctx, src, dst, bytes((x,)), mask_hash, seed_hash))',
            'b"".join((src, dst, bytes((x,)), mask_hash, seed_hash))',
        ),
    ),
    out(
        "_secrets::test_no_stream_key_comes_twice_in_three_rounds_with_evaluation_and_a_retry",
        K,
        ('b"seal", src, dst)', 'b"seal", min(src, dst), max(src, dst))'),
    ),
    out(
        AROUND,
        K,
        (
            'b"".join((ctx, src, dst, bytes((x,)), mask_hash, seed_hash))',
            'b"".join((ctx, src, bytes((x,)), mask_hash, seed_hash))',
        ),
    ),
    out(
        AROUND,
        K,
        (
            'b"".join((ctx, src, dst, bytes((x,)), mask_hash, seed_hash))',
            'b"".join((ctx, src, dst, bytes((x,)), mask_hash))',
        ),
    ),
    off(INSIDE, K, "if point != x:"),
    off(INSIDE, K, "if not hmac.compare_digest(hashlib.sha256(share).digest(), signed):"),
    out(
        "_secrets::test_whoever_reads_logs_journals_traffic_and_names_of_objects_finds_no_secret",
        K,
        ('f"KeyPair(public={self.public.hex()})"', 'f"KeyPair(secret={self.secret.hex()})"'),
    ),
    out(TERMS, CONTEXT, ("            self.model,\n", "")),
    out(TERMS, CONTEXT, ("            canonical(self.config),\n", "")),
    out(TERMS, CONTEXT, ("            canonical(self.params),\n", "")),
    out(TERMS, CONTEXT, ("            self.layout,\n", "")),
    out(TERMS, CONTEXT, ("            self.phase.encode(),\n", "")),
    out(
        "_roster::test_a_server_that_replays_a_members_keys_of_an_earlier_attempt_gets_no_shares",
        CONTEXT,
        ('            b"%d" % self.attempt,\n', ""),
    ),
    out(
        "_shares::test_a_server_that_turns_the_ring_for_one_member_gets_no_vector_of_it",
        CONTEXT,
        ('lp(b"umbel/ctx", ctx0, roster_root, committee)', 'lp(b"umbel/ctx", ctx0, committee)'),
    ),
    out(
        "::test_two_sets_open_neither_secret_twice_even_where_the_vote_is_taken_out",
        GRAPH,
        ("    k = n - 1\n    t = (k + a) // 2 + 1", "    k = n - 1\n    t = k // 2 + 1"),
        ('("2t > k + A", 2 * p.t > p.k + p.a),', ""),
    ),
    off(WEAK, GRAPH, "if own_a > p.a:"),
    off(
        "_roster::test_a_server_that_allows_more_losses_than_the_policy_gets_no_shares",
        GRAPH,
        "if own_d is not None and p.d > own_d:",
    ),
    off(
        "_shares::test_shares_with_a_doubled_a_zero_or_a_far_index_are_never_combined",
        "protocol/shamir.py",
        "if (np.diff(np.sort(x, axis=1), axis=1) == 0).any():",
    ),
    out(
        "_shares::test_shares_with_a_doubled_a_zero_or_a_far_index_are_never_combined",
        "protocol/shamir.py",
        ("not 1 <= int(x.min())", "not 0 <= int(x.min())"),
    ),
]

SERVER = [
    off(
        "_members::test_a_member_that_signs_with_another_key_or_for_another_member_is_named",
        A,
        'if not keys.verify(member.public, message.signature, "keys", *fields):',
    ),
    off(
        "_members::test_a_member_that_sends_anothers_keys_or_keys_twice_is_named",
        A,
        "if member.id in self._gathered or len({*taken, *entry[2:]}) != len(taken) + 2:",
    ),
    out(
        "_members::test_a_member_that_sends_one_key_in_two_roles_is_named",
        A,
        ("len({*taken, *entry[2:]}) != len(taken) + 2", "set(taken) & set(entry[2:])"),
    ),
    out(
        "_members::test_a_member_with_a_key_of_low_order_is_named_and_the_others_go_on",
        A,
        ("keys.check_public(public, name)", "pass"),
    ),
    also(
        "_members::test_keys_after_the_freeze_and_rosters_that_are_too_small_end_there",
        "(S, State.GATHERING, Event.KEYS): State.GATHERING,",
        "(S, State.SHARING, Event.KEYS): State.SHARING,",
    ),
    off(DEALT, A, "if place in self._shares:"),
    off(DEALT, A, "if len(message.blobs) != self._plan().k:"),
    off(
        "_members::test_shares_that_their_sender_did_not_sign_are_refused_by_name",
        A,
        'if not self._signed(place, message.signature, "shares", *fields):',
    ),
    off(
        "_members::test_a_vector_of_a_member_that_dealt_no_shares_is_refused_by_name",
        A,
        "if place not in self._shares:",
    ),
    off(THIN, A, "if message.u2_hash != self._hash(self.u2):"),
    off(VECTOR, A, 'if not self._signed(place, message.signature, "masked", *fields):'),
    off(VECTOR, A, "if self._headers.setdefault(place, message) != message:"),
    off(VECTOR, A, "if place not in self._headers or self._headers[place].y_hash != y_hash:"),
    also(
        "::test_a_vector_that_arrives_after_the_freeze_is_never_unmasked",
        "(S, State.SUMMING, Event.HEADER): State.SUMMING,",
        "(S, State.UNMASKING, Event.HEADER): State.UNMASKING,",
    ),
    off(LOSSES, A, "if p.n - present > p.d:"),
    off(LOSSES, A, "if len(self._whole) < least:"),
    off(BALLOT, A, "if place not in self.u:"),
    off(BALLOT, A, "if place in self._votes:"),
    off(BALLOT, A, 'if not self._signed(place, message.signature, "survivors", *fields):'),
    off(BALLOT, A, "if not self.has_quorum:"),
    off(RELEASE, A, "if place not in self.u or place in self._released:"),
    out(
        RELEASE,
        A,
        ("if len(owners) != len(message.shares):", "if False:"),
        ("zip(owners, message.shares, strict=True)", "zip(owners, message.shares, strict=False)"),
    ),
    out(
        "_members::test_a_holder_that_releases_a_share_it_was_not_dealt_is_named_and_the_sum_comes_out",
        A,
        ("if sha256(share).digest() == wanted:", "if share:"),
    ),
    out(
        "_members::test_an_owner_that_seals_bad_blobs_is_named_when_more_than_a_holders_say_so",
        A,
        ("            self._blame_owners()\n", ""),
    ),
    off(OWNER, U, "if keys.commitment(material.ctx, own, seed) != material.commitments[owner]:"),
    off(OWNER, U, "if pair.public != entry.mask_pk:"),
    out(DISK, U, ("    wipe(secrets)\n", "")),
    off(VOID, LAYOUT, "if (first, last) != (survivors, survivors):"),
    off(VOID, LAYOUT, "if not survivors <= weight <= survivors * cap:"),
    out(
        "_server::test_a_member_whose_mask_is_wrong_makes_the_round_void_and_nothing_is_published",
        "server/embedded.py",
        ("        self.sum.check(codec.bound(survivors))\n", ""),
    ),
    off(
        VOID,
        "protocol/codec.py",
        "if signed.size and not (-bound <= int(signed.min()) and int(signed.max()) <= bound):",
    ),
    off(
        "_streams::test_members_cannot_make_the_sum_of_their_codes_wrap",
        "protocol/codec.py",
        "if members * q_max > 2 ** (RING_BITS - 1) - 1:",
    ),
    out(
        "_wire::test_a_member_that_would_be_folded_twice_is_named_and_the_sum_is_as_it_was",
        "server/core/world.py",
        ('raise PeerError(node, "sent a second message for this sum")', "pass"),
    ),
    out(
        EXPELLED,
        "server/attempt.py",
        ("self._server.delivered(bytes.fromhex(node), digest)", "pass"),
    ),
    off(EXPELLED, "server/attempt.py", "if masked.bytes != total:"),
    off(
        EXPELLED,
        "server/attempt.py",
        'if message.ctx != (self.ctx if body not in {"keys", "ready"} else self._server.ctx0):',
    ),
    out(
        LATE,
        "server/attempt.py",
        ("if self.phase is not P.SUMMING or node in self._gone:", "if node in self._gone:"),
    ),
]

BYTES = [
    off(
        "_wire::test_a_member_that_sends_other_bytes_for_a_place_is_named_and_nothing_is_merged",
        FRAMES,
        "if bytes(payload[:known]) != bytes(self._out[offset : offset + known]):",
    ),
    out(ELSEWHERE, FRAMES, ('self._same("frame subject", self._subject.hex(), subject.hex())', "")),
    out(ELSEWHERE, FRAMES, ('self._same("frame kind", self._kind, kind)', "")),
    out(ELSEWHERE, FRAMES, ('self._same("frame total", len(self._out), total)', "")),
    off(
        "_wire::test_a_message_larger_than_the_largest_is_not_even_parsed",
        WIRE,
        "if len(data) > limit:",
    ),
    out(
        "_wire::test_a_member_that_pads_its_header_does_not_drown_its_neighbours",
        WIRE,
        ("    message.DiscardUnknownFields()\n", ""),
    ),
    out(UP, WIRE, ('_exact(peer, "sealed.blob", sealed.blob, BLOB_BYTES)', "pass")),
    out(UP, WIRE, ('_at_most(peer, "sealed blobs", count, MAX_DEGREE)', "pass")),
    out(UP, WIRE, ('_exact(peer, "released share", share, KEY)', "pass")),
    out(UP, WIRE, ('_at_most(peer, "refusal.key, characters", len(key), 64)', "pass")),
    off(
        WORDS,
        WIRE,
        "if not key.isprintable() or (key and message.refusal.reason not in _WITH_KEY):",
    ),
    out(
        "_wire::test_a_server_that_writes_to_a_devices_console_is_quoted",
        "protocol/errors.py",
        ("return one_line(_cut(super().__str__(), LONGEST))", "return super().__str__()"),
    ),
    out(
        DOWN,
        WIRE,
        (
            '_at_most(peer, "roster.entries, bytes", len(body.entries), MAX_MEMBERS * ENTRY_BYTES)',
            "pass",
        ),
    ),
    out(DOWN, WIRE, ('_at_most(peer, "votes", len(votes), MAX_MEMBERS)', "pass")),
    off(
        "_wire::test_settings_without_end_or_with_a_key_twice_are_malformed",
        "protocol/canonical.py",
        "if len(items) > MAX_SETTINGS:",
    ),
]

GUARDS = [*CRYPTOGRAPHY, *SERVER, *BYTES]
