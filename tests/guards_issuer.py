"""The guards of the issuing CA: who may become a node, stay one, and be spoken for (guards.py)."""

from __future__ import annotations

from umbel.tests.guards import off, out

I = "server/issuer.py"  # noqa: E741 - as the tables beside it name their files
SIGNING = "server/issuer_signing.py"
BOOKS = "server/issuer_books.py"
FORMS = "protocol/enrolment.py"
JSON = "protocol/forms.py"
LINE = "protocol/enrolment_token.py"
ROLL = "server/roll_ca.py"
INIT = "server/federation_init.py"

FOREIGN = "_issuer::test_a_request_for_a_key_that_somebody_else_holds_is_none"
KIND = "_issuer::test_a_key_of_another_kind_than_the_profiles_gets_no_certificate"
FORM = "_issuer::test_a_request_of_another_form_is_refused_before_anything_is_looked_up"
MISTYPED = "_issuer::test_a_token_with_a_changed_character_is_a_mistyped_one"
ONCE = "_issuer::test_a_token_is_for_its_first_keys_and_for_its_time"
SAID = "_issuer::test_a_secret_is_on_no_disk_and_in_no_message"
BACK = "_issuer::test_a_clock_that_goes_back_opens_no_token_and_turns_no_epoch_back"
IN_FORCE = "_issuer::test_nothing_is_signed_while_the_ca_is_not_in_force"
SECOND = "_issuer::test_keys_that_are_a_nodes_make_no_second_node"
RENEWED = "_issuer::test_a_node_is_renewed_by_both_its_keys_and_by_no_other_federation"
LEFT = "_issuer::test_a_leave_is_of_the_node_and_the_time_that_were_signed"
REMOVED = "_issuer::test_a_removed_node_gets_nothing_more"
MEANWHILE = "_issuer::test_a_node_that_is_removed_while_it_enrols_is_no_node"
DAILY = "_federation::test_the_list_is_signed_anew_every_day_and_is_never_out_of_force"
ROLLED = "_federation::test_a_new_issuing_ca_signs_and_what_the_old_one_signed_holds"
ROOT_KEY = "_federation::test_only_the_roots_key_rolls_the_ca"
OFFLINE = "_federation::test_an_offline_root_leaves_no_key_on_the_server"

GUARDS = [
    out(
        FOREIGN,
        FORMS,
        (
            "if not isinstance(key, Ed25519PublicKey) or not request.is_signature_valid:",
            "if not isinstance(key, Ed25519PublicKey):",
        ),
    ),
    off(FOREIGN, FORMS, "if not request.is_signature_valid:"),
    off(
        KIND,
        FORMS,
        "if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, curve):",
    ),
    off(
        f"{KIND}[signing]",
        FORMS,
        "if not isinstance(key, Ed25519PublicKey) or not request.is_signature_valid:",
    ),
    out(FORM, JSON, ("or set(found) != set(form)", "or not set(form) <= set(found)")),
    off(FORM, JSON, "if len(raw) > most:"),
    off(FORM, JSON, "if type(value) is not int or not low <= value <= high:"),
    out(FORM, JSON, ("or not value.isprintable()", "")),
    off(MISTYPED, LINE, "if check != _checksum(body):"),
    out(SAID, LINE, ("secret: bytes = field(repr=False)", "secret: bytes")),
    off(ONCE, I, "if row is None or books.keys_of(row) != keys:"),
    off(ONCE, I, 'if token["expires"] <= books.seconds(now):'),
    off(ONCE, I, 'if token["state"] != "open":'),
    off(ONCE, I, "if federation != self._settings.name:"),
    off(BACK, I, 'if books.seconds(now + BACKDATED) < token["created"]:'),
    out(
        BACK,
        SIGNING,
        ("max((known.epoch if known else 0) + 1, books.seconds(now))", "books.seconds(now)"),
    ),
    off(IN_FORCE, SIGNING, "if not begins <= now < ends:"),
    off(SECOND, I, "if books.has_keys(db, keys):"),
    out(
        RENEWED,
        I,
        (
            '(_spki(tls), _spki(signing)) != (row["tls_key"], row["signing_key"])',
            '_spki(tls) != row["tls_key"]',
        ),
    ),
    out(
        RENEWED,
        I,
        (
            '(_spki(tls), _spki(signing)) != (row["tls_key"], row["signing_key"])',
            '_spki(signing) != row["signing_key"]',
        ),
    ),
    off(LEFT, I, "if not isinstance(key, Ed25519PublicKey) or not request.is_of(key):"),
    out(
        LEFT,
        FORMS,
        ("pack(LEAVE, federation.encode(), node, str(time).encode())", "pack(LEAVE, node)"),
    ),
    out(
        REMOVED,
        I,
        (
            'if row["removed"] is not None:\n                raise Declined("removed")',
            "if False:\n                raise ValueError",
        ),
        (
            'if row["removed"] is not None:\n        raise Declined("removed")',
            "if False:\n        raise ValueError",
        ),
    ),
    out(REMOVED, I, ("self._signing.sign_list(db, now, anew=True)", "pass")),
    out(MEANWHILE, BOOKS, (" AND removed {wanted}", "")),
    off(MEANWHILE, "server/issuer_registration.py", "if not kept:"),
    out(
        DAILY,
        SIGNING,
        ("-BACKDATED <= now - known.issued < LIST_EVERY", "-BACKDATED <= now - known.issued"),
    ),
    out(ROLLED, SIGNING, ("same = known.ca == fingerprint(signer.der)", "same = True")),
    off(
        ROOT_KEY,
        ROLL,
        "if key.public_key() != root.public_key():",
    ),
    off(OFFLINE, INIT, "if (offline / name).exists():"),
]
