"""What cannot be a store in PostgreSQL is refused by name: what is wrong, where, and the remedy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import ports
import postgres
from penstock.server.store import Store, open_store
from penstock.server.store.about import About
from penstock.server.store.postgres import PostgresStore
from penstock.server.store.postgres_locks import LOCK, UNLOCK
from penstock.server.store.postgres_opening import lock_number, upgrade
from penstock.server.store.postgres_place import LOCK_S
from penstock.server.store.rows import MetaRow
from penstock.server.store.sqlite_schema import FORMAT
from penstock.server.store.tables import Tables
from penstock.server.testing.store import LOG, ask
from penstock.wire.errors import InvalidJob, PenstockError, StoreCorrupt, StoreUnavailable

SECRET = "open-sesame"


def run_sql(url: str, *statements: str) -> None:
    """Run statements as the superuser."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


async def refusal(url: str) -> PenstockError:
    """Return what opening says; never with the password."""
    store = open_store(url, Path())
    with pytest.raises((StoreUnavailable, StoreCorrupt)) as caught:
        await store.open()
    assert SECRET not in caught.value.message
    assert SECRET not in str(caught.value.fields)
    return caught.value


async def opened(url: str) -> PostgresStore:
    """Return an open store."""
    store = open_store(url, Path())
    assert isinstance(store, PostgresStore)
    await store.open()
    return store


@pytest.fixture
def place() -> tuple[str, str]:
    """Return a server's address, and a schema that is not there."""
    return postgres.local_18(), postgres.new_schema()


async def test_an_address_that_leads_nowhere_is_named() -> None:
    """A server that is not there, and a database that it lacks."""
    url = postgres.local_18()
    port = ports.free_port()

    away = await refusal(f"postgresql://u:{SECRET}@127.0.0.1:{port}/db")
    other = await refusal(url.replace("/postgres?", "/no_such_base?"))

    assert f"127.0.0.1:{port}/db" in away.message
    assert "look whether the server runs on that host, and listens on that port" in away.message
    assert 'database "no_such_base" does not exist' in other.message
    assert "create the database, with the role as its owner" in other.message


async def test_a_host_without_an_address_is_named() -> None:
    """The name is in the sentence, with what to look at."""
    said = await refusal(f"postgresql://u:{SECRET}@db.invalid/base")

    assert "db.invalid/base" in said.message
    assert said.message.endswith("check the host in the address")


async def test_a_wrong_password_is_not_repeated(tmp_path: Path) -> None:
    """The sentence has the role and the server's answer."""
    server = postgres.own_server()
    try:
        run_sql(server.url, f"CREATE ROLE trainer LOGIN PASSWORD '{SECRET}-right'")
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        run_sql(server.url, "SELECT pg_reload_conf()")
        url = server.url.replace("postgres@", f"trainer:{SECRET}@")
        said = await refusal(url)
        none = await refusal(server.url.replace("postgres@", "trainer@"))
        nobody = await refusal(server.url.replace("postgres@", f"nobody_here:{SECRET}@"))
    finally:
        server.end()

    assert 'password authentication failed for user "trainer"' in said.message
    assert "correct the role's password where it is given" in said.message
    assert "no password supplied" in none.message
    assert "in the file that PGPASSFILE names" in none.message
    assert 'for user "nobody_here"' in nobody.message


async def test_a_role_that_may_make_nothing_is_told_what_to_grant(place: tuple[str, str]) -> None:
    """With the statement; a schema that was made for it is enough."""
    url, schema = place
    run_sql(url, f"CREATE ROLE r_{schema} LOGIN")
    own = postgres.in_schema(url.replace("postgres@", f"r_{schema}@"), schema)

    said = await refusal(own)
    run_sql(url, f"CREATE SCHEMA {schema} AUTHORIZATION r_{schema}")
    store = await opened(own)
    await store.begin(ask())
    await store.close()

    assert f"GRANT CREATE ON DATABASE postgres TO r_{schema}" in said.message


async def test_another_programs_schema_is_left_alone(place: tuple[str, str]) -> None:
    """Nothing is made in it."""
    url, schema = place
    run_sql(url, f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.invoices (n int)")

    said = await refusal(postgres.in_schema(url, schema))

    assert "schema of another program, with tables such as invoices" in said.message


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DROP TABLE {0}.cursors", "half a store: table cursors is missing"),
        ("ALTER TABLE {0}.cursors DROP COLUMN step", "half a store: table cursors is not as"),
        ("DELETE FROM {0}.meta WHERE key = 'uuid'", "has no identity"),
        ("UPDATE {0}.meta SET value = '99' WHERE key IN ('format', 'since')", "has format 99"),
        ("UPDATE {0}.meta SET value = 'x' WHERE key = 'format'", "damaged (its format is 'x'"),
    ],
)
async def test_what_is_not_a_whole_store_is_refused(
    place: tuple[str, str], statement: str, sentence: str
) -> None:
    """As a file of SQLite would be."""
    url, schema = place
    await (await opened(postgres.in_schema(url, schema))).close()
    run_sql(url, statement.format(schema))

    said = await refusal(postgres.in_schema(url, schema))

    assert isinstance(said, StoreCorrupt)
    assert sentence in said.message


async def test_an_older_format_is_upgraded_only_by_the_command(place: tuple[str, str]) -> None:
    """What the newer format has more is made, and what was there stays."""
    url, schema = place
    own = postgres.in_schema(url, schema)
    store = await opened(own)
    await store.begin(ask())
    identity = store.uuid
    await store.close()
    older = f"UPDATE {schema}.meta SET value = '{FORMAT - 1}' WHERE key IN ('format', 'since')"
    run_sql(url, f"DROP TABLE {schema}.halts", older)

    said = await refusal(own)
    done = await upgrade(store.place)
    store = await opened(own)
    groups = await store.groups("code")
    await store.close()

    assert "run `penstockd store upgrade` once" in said.message
    assert done == (FORMAT - 1, FORMAT)
    assert [group.name for group in groups] == ["run"]
    assert store.uuid == identity
    assert await upgrade(store.place) == (FORMAT, FORMAT)


async def test_a_format_that_only_has_more_is_written_beside_newer_nodes(
    place: tuple[str, str],
) -> None:
    """A node of this version goes on while a newer one has brought the store up, until it may not.

    The newer format says since which format its writers may be.
    """
    url, schema = place
    own = postgres.in_schema(url, schema)
    store = await opened(own)
    await store.begin(ask())
    newer = f"UPDATE {schema}.meta SET value = '{FORMAT + 1}' WHERE key = 'format'"
    run_sql(url, f"CREATE TABLE {schema}.later (n int)", newer)

    await store.commit("code", "run", "t1", 1, 0, 1)
    again = await opened(own)
    assert (await again.groups("code"))[0].rows == (1, 0)
    await again.close()
    run_sql(url, f"UPDATE {schema}.meta SET value = '{FORMAT + 1}' WHERE key = 'since'")
    end_backends(url)
    with pytest.raises(StoreCorrupt, match="knows format"):
        await store.commit("code", "run", "t1", 1, 0, 2)

    await store.close()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("synchronous_commit = off", "synchronous_commit is off"),
        ("default_transaction_read_only = on", "takes no writes"),
    ],
)
async def test_a_server_that_would_lose_commits_is_refused(
    place: tuple[str, str], setting: str, sentence: str
) -> None:
    """Set for the role, as an administrator may."""
    url, schema = place
    run_sql(url, f"CREATE ROLE r_{schema} LOGIN SUPERUSER", f"ALTER ROLE r_{schema} SET {setting}")

    said = await refusal(url.replace("postgres@", f"r_{schema}@"))

    assert sentence in said.message


async def test_a_database_without_room_for_connections_is_named(place: tuple[str, str]) -> None:
    """With the setting that allows more."""
    url, schema = place
    run_sql(url, f"CREATE ROLE r_{schema} LOGIN SUPERUSER CONNECTION LIMIT 0")
    role = f"r_{schema}_few"
    run_sql(url, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")

    said = await refusal(url.replace("postgres@", f"{role}@"))

    assert "raise max_connections" in said.message


async def test_the_last_connections_are_kept_for_superusers() -> None:
    """The server then has other words for it, and they get the same remedy."""
    server = postgres.own_server()
    try:
        run_sql(server.url, "CREATE ROLE trainer LOGIN", "ALTER SYSTEM SET max_connections = 6")
        server.stop("fast")
        server.start()
        url = server.url.replace("postgres@", "trainer@")
        held = [psycopg.connect(url) for _ in range(3)]
        said = await refusal(url)
        for each in held:
            each.close()
    finally:
        server.end()

    assert "remaining connection slots are reserved" in said.message
    assert "raise max_connections" in said.message


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("LOGIN; ALTER ROLE {0} SET statement_timeout = '1ms'", "raise statement_timeout"),
        ("NOLOGIN", "ALTER ROLE ... LOGIN"),
    ],
)
async def test_what_a_role_may_not_is_named(
    place: tuple[str, str], setting: str, sentence: str
) -> None:
    """With what allows it."""
    url, schema = place
    role = f"r_{schema}"
    run_sql(url, *f"CREATE ROLE {role} SUPERUSER {setting.format(role)}".split(";"))

    said = await refusal(postgres.in_schema(url.replace("postgres@", f"{role}@"), schema))

    assert sentence in said.message


async def test_rights_on_tables_alone_are_too_few(place: tuple[str, str]) -> None:
    """Numbers come from a sequence: the sentence names that, too."""
    url, schema = place
    await (await opened(postgres.in_schema(url, schema))).close()
    run_sql(
        url,
        f"CREATE ROLE r_{schema} LOGIN",
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO r_{schema}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO r_{schema}",
    )
    store = await opened(postgres.in_schema(url.replace("postgres@", f"r_{schema}@"), schema))
    with pytest.raises(StoreUnavailable) as said:
        await store.begin(ask())
    await store.close()

    assert "permission denied for sequence" in said.value.message
    assert "all its tables and sequences" in said.value.message


async def test_each_of_several_hosts_is_named_once() -> None:
    """With its own port, as the address has it."""
    first, second = ports.free_port(), ports.free_port()
    said = await refusal(f"postgresql://u:{SECRET}@127.0.0.1:{first},127.0.0.1:{second}/base")

    assert f"the store postgresql://127.0.0.1:{first},127.0.0.1:{second}/base (" in said.message
    assert "no host of several can be used" in said.message
    assert said.message.count(f"port {second} failed") == 1


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://u:{0}@h/base?sslmod=require", "libpq has no parameter 'sslmod'"),
        ("postgresql://u:{0}%zz@h/base", "libpq cannot read it"),
        ("postgres:/u:{0}@h/base", "is not an address of PostgreSQL"),
    ],
)
def test_what_is_not_an_address_is_said_without_its_password(url: str, sentence: str) -> None:
    """Only the name of a parameter is repeated."""
    with pytest.raises(InvalidJob) as said:
        open_store(url.format(SECRET), Path())

    assert sentence in said.value.message
    assert SECRET not in said.value.message


async def test_a_store_of_another_identity_is_refused_at_every_connection(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Say a new database under the same name."""
    monkeypatch.setattr("penstock.server.store.postgres.AGAIN_S", 0.3)
    url, schema = place
    store = await opened(postgres.in_schema(url, schema))
    await store.begin(ask())
    run_sql(url, f"UPDATE {schema}.meta SET value = 'another' WHERE key = 'uuid'")
    end_backends(url)

    with pytest.raises(StoreUnavailable, match=f"it is store another now.*{store.uuid}"):
        await store.commit("code", "run", "t1", 1, 0, 2)

    run_sql(url, f"UPDATE {schema}.meta SET value = '{store.uuid}' WHERE key = 'uuid'")
    monkeypatch.undo()
    assert (await store.commit("code", "run", "t1", 1, 0, 2)).row == 2
    await store.close()


async def test_a_store_that_has_lost_an_answered_commit_is_refused(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lagging standby that was promoted lacks it; a server that is started anew takes it."""
    monkeypatch.setattr("penstock.server.store.postgres.AGAIN_S", 0.3)
    url, schema = place
    store = await opened(postgres.in_schema(url, schema))
    await store.begin(ask())
    await store.commit("code", "run", "t1", 1, 0, 2)
    run_sql(
        url,
        f"UPDATE {schema}.cursors SET step = 0",
        f"UPDATE {schema}.writers SET answered = answered - 1",
    )
    end_backends(url)

    for call in (
        store.commit("code", "run", "t1", 1, 0, 3),
        store.groups("code"),
        store.add_lane_ends(bytes(32), {0: 1}),
    ):
        with pytest.raises(StoreUnavailable, match="behind what it has answered"):
            await call
    await store.close()

    again = await opened(postgres.in_schema(url, schema))
    assert (await again.groups("code"))[0].rows == (0, 0)
    await again.close()


async def test_a_lagging_standby_that_is_promoted_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a failover does it; the standby itself is refused before that, for what it is."""
    monkeypatch.setattr("penstock.server.store.postgres.AGAIN_S", 0.3)
    primary = postgres.own_server()
    standby = None
    try:
        first = await opened(primary.url)
        await first.begin(ask(world_size=1))
        await first.close()
        standby = await asyncio.to_thread(postgres.own_server, primary=primary)
        both = f"{primary.folder},{standby.folder}".replace("/", "%2F")
        url = f"postgresql://postgres@/postgres?host={both}&target_session_attrs=read-write"
        store = await opened(url)
        said = await refusal(standby.url)
        await asyncio.to_thread(standby.stop, "fast")
        await store.commit("code", "run", "t1", 1, 0, 7)

        await asyncio.to_thread(primary.stop)
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.call, "pg_ctl", "-w", "-D", standby.data, "promote")
        with pytest.raises(StoreUnavailable, match="behind what it has answered"):
            await store.commit("code", "run", "t1", 1, 0, 8)
        await store.close()
        again = await opened(url)
        assert (await again.groups("code"))[0].cursor == 0
        await again.close()
    finally:
        primary.end()
        if standby is not None:
            standby.end()

    assert "it is a standby" in said.message


async def test_a_node_that_holds_a_group_and_hangs_is_named(place: tuple[str, str]) -> None:
    """Others wait for it, then say so; other groups go on."""
    url, schema = place
    own = postgres.in_schema(url, schema)
    store, other = await opened(own), await opened(own)
    await store.begin(ask())
    await store.begin(ask(group="free"))
    with psycopg.connect(url, autocommit=True) as hung:
        number = lock_number(store.uuid, ("group", "code", "run"))
        hung.execute("SELECT pg_advisory_lock(%s::bigint)", (number,))
        held = asyncio.ensure_future(store.commit("code", "run", "t1", 1, 0, 1))
        assert (await other.commit("code", "free", "t1", 1, 0, 1)).row == 1
        with pytest.raises(StoreUnavailable, match="another node has held the same group"):
            await held
    assert (await store.commit("code", "run", "t1", 1, 0, 1)).row == 1
    await store.close()
    await other.close()


async def test_a_node_that_hangs_within_a_transaction_holds_others_up_for_a_bounded_time(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its session, and its locks with it; it does so after 10 s."""
    options = f"-c lock_timeout={int(LOCK_S * 1000)} -c idle_in_transaction_session_timeout=300"
    monkeypatch.setattr("penstock.server.store.postgres_place._OPTIONS", options)
    url, schema = place
    own = postgres.in_schema(url, schema)
    store, other = await opened(own), await opened(own)
    await store.begin(ask())
    hangs, goes_on = asyncio.Event(), asyncio.Event()

    async def hang(tables: Tables) -> None:
        await tables.all(MetaRow)
        hangs.set()
        await goes_on.wait()

    about = About("hang", (("group", "code", "run"),))
    hung = asyncio.ensure_future(store.operate(about, hang))
    await hangs.wait()

    assert (await other.commit("code", "run", "t1", 1, 0, 1)).row == 1
    goes_on.set()
    await hung
    assert (await store.commit("code", "run", "t1", 1, 0, 2)).row == 2
    await store.close()
    await other.close()


async def test_a_node_that_is_stopped_between_its_lock_and_its_transaction_is_ended(
    place: tuple[str, str],
) -> None:
    """The lock is the session's, so the session may be idle with it: not for ever."""
    url, _ = place
    text = LOCK.replace("'10000'", "'300'").replace("%s", "ARRAY[%s]")
    with psycopg.connect(url, autocommit=True) as stopped:
        stopped.execute(text, (4711,))
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SET lock_timeout = '60s'")
            other.execute(text, (4711,))
            other.execute(UNLOCK)
            held = other.execute("SHOW idle_session_timeout").fetchone()
            assert held == ("0",)


async def test_a_node_that_is_cut_off_in_the_middle_of_a_pipeline_is_ended(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes a session for active that has read a part of what its node sends together.

    No timeout of the server ends it, so a node that waits for its lock does.
    """
    monkeypatch.setattr("penstock.server.store.postgres_locks.UNHEARD_S", 0.3)
    url, schema = place
    store = await opened(postgres.in_schema(url, schema))
    await store.begin(ask())
    await store.begin(ask(group="other"))
    number = lock_number(store.uuid, ("group", "code", "run"))
    elsewhere = lock_number(store.uuid, ("group", "code", "idle"))
    with (
        contextlib.closing(psycopg.connect(url, autocommit=True)) as cut,
        contextlib.closing(psycopg.connect(url, autocommit=True)) as held,
    ):
        for session, of_group in ((cut, number), (held, elsewhere)):
            session.execute(LOCK, ([of_group],))
            session.pgconn.enter_pipeline_mode()
            session.pgconn.send_query_params(b"BEGIN", [])
            session.pgconn.send_flush_request()
            session.pgconn.flush()  # and its Sync is lost

        with pytest.raises(StoreUnavailable, match="another node has held the same group"):
            await store.commit("code", "run", "t1", 1, 0, 1)
        assert (await store.commit("code", "run", "t1", 1, 0, 1)).row == 1
        with psycopg.connect(url, autocommit=True) as looks:
            alive = looks.execute(
                "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s)",
                ([cut.info.backend_pid, held.info.backend_pid],),
            ).fetchall()
        assert alive == [(held.info.backend_pid,)], "one that holds up nobody is left alone"
    await store.close()


async def test_a_server_that_restarts_loses_no_answered_commit() -> None:
    """Calls wait for it, and those that were under way are run again."""
    server = postgres.own_server()
    try:
        store = await opened(server.url)
        await store.begin(ask(world_size=1))
        answered, is_back = 0, False

        async def commit_on() -> None:
            nonlocal answered
            for step in itertools.count(1):
                over = is_back
                try:
                    await store.commit("code", "run", "t1", 1, 0, step)
                except StoreUnavailable:
                    continue
                answered = step
                if over:
                    return

        running = asyncio.ensure_future(commit_on())
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        is_back = True
        await running
        assert (await store.groups("code"))[0].cursor >= answered > 0
        await store.close()
    finally:
        server.end()


async def test_pgbouncer_is_refused_by_name(tmp_path: Path) -> None:
    """Locks belong to a session, and a pooler gives each transaction another one."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        postgres.absent("Debian's package pgbouncer is not installed")
    url, port = postgres.local_18(), ports.free_port()
    folder = Path(url.partition("host=")[2].replace("%2F", "/"))
    users, settings = folder / f"users{port}.txt", folder / f"bouncer{port}.ini"
    users.write_text('"postgres" ""\n')
    settings.write_text(
        f"[databases]\npostgres = host={folder}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\nauth_file = {users}\n"
        "pool_mode = transaction\nignore_startup_parameters = options\n"
    )
    settings.write_text(settings.read_text().replace("= host=", "= user=postgres host="))
    command = [str(program), str(settings)]
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (users, settings):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        command = [*as_nobody, *command]
    bouncer = await asyncio.to_thread(subprocess.Popen, command, stderr=subprocess.PIPE)
    try:
        while True:  # until it listens
            said = await refusal(f"postgresql://postgres@127.0.0.1:{port}/postgres")
            if "refused" not in said.message:
                break
            assert bouncer.poll() is None
    finally:
        bouncer.terminate()
        bouncer.communicate()

    assert "a pooler such as PgBouncer stands before it" in said.message


def end_backends(url: str) -> None:
    """End every connection of a store, as an administrator or a failover does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'penstockd' AND pid <> pg_backend_pid()"
        )


def test_the_password_stands_in_no_representation() -> None:
    """What is logged of a store is where it is."""
    store: Store = open_store(f"postgresql://u:{SECRET}@host/db", Path())

    assert SECRET not in store.where
    assert quote(SECRET) not in repr(store)


def test_a_full_disk_is_the_databases() -> None:
    """The sentence has what the server says, and whose disk it is."""
    store = open_store("postgresql://host/db", Path())
    assert isinstance(store, PostgresStore)

    said = store.place.named(psycopg.errors.DiskFull("could not extend file: No space left"))

    assert isinstance(said, StoreUnavailable)
    assert "its disk is full (could not extend file: No space left)" in said.message


async def test_what_is_called_often_takes_few_round_trips(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit by one rank three, however many ranks are below 128; asking for news one.

    A look for what others have done is one statement, too: there is one each second and node.
    """
    url, schema = place
    store = await opened(postgres.in_schema(url, schema))
    trips = statements = 0
    sync, execute = psycopg.AsyncPipeline.sync, psycopg.AsyncConnection.execute

    async def counted(self: psycopg.AsyncPipeline) -> None:
        nonlocal trips
        trips += 1
        await sync(self)

    async def executed(self: psycopg.AsyncConnection[Any], *args: Any, **more: Any) -> Any:
        nonlocal statements
        statements += 1
        return await execute(self, *args, **more)

    monkeypatch.setattr(psycopg.AsyncPipeline, "sync", counted)
    monkeypatch.setattr(psycopg.AsyncConnection, "execute", executed)
    groups = [("code", f"g{number}") for number in range(20)]
    for _, name in groups:
        await store.begin(ask(group=name, world_size=64))

    async def cost(call: Awaitable[object]) -> int:
        nonlocal trips, statements
        trips = statements = 0
        await call
        return trips

    await store.commit("code", "g1", "t1", 1, 0, 1)
    assert await cost(store.commit("code", "g1", "t1", 1, 63, 2)) == 3
    assert await cost(store.commit("code", "g1", "t1", 1, 7, 3, all_rows=True)) == 3
    await store.latest(groups)
    assert await cost(store.latest(groups)) == 1
    await store.followed([LOG], groups, "node")
    assert await cost(store.followed([LOG], groups, "node")) == 1
    assert statements == 1
    assert await cost(store.followed([LOG, bytes(32)], groups[1:], "node")) == 1
    assert statements == 1
    await store.changes(LOG, 0)
    assert await cost(store.changes(LOG, 0)) == 1
    assert await cost(store.check_token("code", "g1", "t1", 1)) <= 3

    many = (store.commit("code", "g1", "t1", 1, rank, 4) for rank in range(64))
    assert await cost(asyncio.gather(*many)) <= 6
    await store.close()
