package resp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep/wire/auth"
)

// cmdAuth is AUTH [user] token. The user, when given, is "default", the tenant's or the
// credential's name.
func (c *conn) cmdAuth(_ context.Context, cmd command) error {
	user, token := "", cmd.args[len(cmd.args)-1]
	if len(cmd.args) == 3 {
		user = string(cmd.args[1])
	}
	if err := c.login(user, string(token)); err != nil {
		return c.refuse(err)
	}
	c.ok()
	return nil
}

// maxDenied is how many wrong tokens a connection may try.
const maxDenied = 10

const (
	errWrongPass = replyError("WRONGPASS invalid username-password pair or user is disabled.")
	errNoPass    = replyError("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
)

func (c *conn) login(user, token string) error {
	if c.s.o.Auth.Open() {
		if user == "default" {
			return nil
		}
		return errNoPass
	}
	id, err := c.s.o.Auth.Identify(c.ctx, c.shown(user, token))
	if token == "" && err == nil {
		c.s.o.Auth.Deny(auth.Denial{Protocol: protocol, Reason: auth.Missing, Peer: c.raw.RemoteAddr()})
	}
	if token == "" || err != nil { // a certificate beside it does not make an empty one right
		c.s.stats.denied.Add(1)
		if c.denied++; c.denied >= maxDenied {
			c.quit = true // after this answer: who guesses begins anew
		}
		return errWrongPass
	}
	return c.become(id)
}

// refuse replies, or passes on that the connection ends.
func (c *conn) refuse(err error) error {
	if errors.Is(err, errQuit) {
		return err
	}
	return c.fail(err)
}

// cmdHello is HELLO [2|3 [AUTH user token] [SETNAME name]].
func (c *conn) cmdHello(ctx context.Context, cmd command) error {
	args := cmd.args[1:]
	proto := c.proto
	if len(args) > 0 {
		n, err := integer(args[0])
		if err != nil {
			return c.fail(replyError("ERR Protocol version is not an integer or out of range"))
		}
		if n != 2 && n != 3 {
			return c.fail(replyError("NOPROTO unsupported protocol version"))
		}
		proto = int(n)
		args = args[1:]
	}
	name := ""
	for len(args) > 0 {
		switch o := upper(args[0]); {
		case o == "AUTH" && len(args) >= 3:
			if err := c.login(string(args[1]), string(args[2])); err != nil {
				return c.refuse(err)
			}
			args = args[3:]
		case o == "SETNAME" && len(args) >= 2:
			name = string(args[1])
			args = args[2:]
		default:
			return c.fail(replyError("ERR Syntax error in HELLO option '" + printable(o) + "'"))
		}
	}
	if !c.known {
		return c.fail(replyError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"))
	}
	c.speak(proto)
	if name != "" {
		if err := c.setName(name); err != nil {
			return c.fail(err)
		}
	}
	c.fields(7)
	for _, f := range [][2]string{{"server", "redis"}, {"version", redisVersion}} {
		c.text(f[0])
		c.text(f[1])
	}
	c.text("proto")
	c.int(int64(c.proto))
	c.text("id")
	c.int(c.id)
	c.text("mode")
	c.text(c.mode(ctx))
	c.text("role")
	c.text("master")
	c.text("modules")
	c.array(0)
	return nil
}

// redisVersion is what clients are told who choose commands by it.
const redisVersion = "7.0.0"

func (c *conn) cmdPing(_ context.Context, cmd command) error {
	if len(cmd.args) == 2 {
		c.bulk(cmd.args[1])
	} else {
		c.simple("PONG")
	}
	return nil
}

func (c *conn) cmdEcho(_ context.Context, cmd command) error {
	c.bulk(cmd.args[1])
	return nil
}

func (c *conn) cmdQuit(context.Context, command) error {
	c.ok()
	c.quit = true
	return nil
}

// cmdReset makes the connection what it was when it began.
func (c *conn) cmdReset(context.Context, command) error {
	c.number, c.db = 0, nil
	c.speak(2)
	c.about.set(func(a *aboutInfo) { a.client, a.db = "", 0 })
	shown := c.shown("", "")
	shown.Protocol = "" // AUTH may follow
	if id, err := c.s.o.Auth.Identify(c.ctx, shown); err != nil {
		c.leave()
	} else if err := c.become(id); err != nil {
		return err
	}
	c.simple("RESET")
	return nil
}

// databases is how many numbered databases a tenant has.
const databases = 16

func (c *conn) cmdSelect(_ context.Context, cmd command) error {
	n, err := integer(cmd.args[1])
	if err != nil {
		return c.fail(err)
	}
	if n < 0 || n >= databases {
		return c.fail(replyError("ERR DB index is out of range"))
	}
	c.number, c.db = int(n), nil
	c.about.set(func(a *aboutInfo) { a.db = int(n) })
	c.ok()
	return nil
}

func (c *conn) cmdTime(context.Context, command) error {
	now := c.s.o.Wall()
	c.array(2)
	c.text(strconv.FormatInt(now.Unix(), 10))
	c.text(strconv.Itoa(now.Nanosecond() / 1000))
	return nil
}

// cmdCommand is COMMAND, COMMAND COUNT, COMMAND INFO, COMMAND LIST and COMMAND DOCS.
func (c *conn) cmdCommand(_ context.Context, cmd command) error {
	names := make([]string, 0, len(commands))
	for n := range commands {
		names = append(names, n)
	}
	slices.Sort(names)
	sub := ""
	if len(cmd.args) > 1 {
		sub = upper(cmd.args[1])
	}
	switch sub {
	case "":
	case "COUNT":
		c.int(int64(len(names)))
		return nil
	case "LIST":
		c.array(len(names))
		for _, n := range names {
			c.text(strings.ToLower(n))
		}
		return nil
	case "INFO":
		if len(cmd.args) > 2 {
			names = names[:0]
			for _, a := range cmd.args[2:] {
				names = append(names, upper(a))
			}
		}
	case "DOCS":
		c.fields(0) // clients take none for none written
		return nil
	default:
		return c.fail(replyError("ERR unknown subcommand '" + printable(sub) + "'. Try COMMAND HELP."))
	}
	c.array(len(names))
	for _, n := range names {
		c.describe(n, commands[n])
	}
	return c.flushIfLarge()
}

func (c *conn) describe(name string, d *definition) {
	if d == nil {
		c.null()
		return
	}
	arity := d.min
	if d.max != d.min {
		arity = -d.min
	}
	c.array(10) // as a server of redisVersion
	c.text(strings.ToLower(name))
	c.int(int64(arity))
	c.words(strings.Fields(d.flags))
	c.int(int64(d.first))
	c.int(int64(d.last))
	c.int(int64(d.step))
	c.words(d.categories())
	c.array(0) // tips
	if d.first == 0 {
		c.array(0)
	} else {
		c.array(1)
		c.keySpec(d)
	}
	c.array(0) // subcommands
}

// categories are those of an ACL, as far as they follow from the rest.
func (d *definition) categories() []string {
	of := []string{"@slow"}
	for _, f := range strings.Fields(d.flags) {
		switch f {
		case "fast":
			of[0] = "@fast"
		case "readonly":
			of = append(of, "@read")
		case "write":
			of = append(of, "@write")
		}
	}
	if d.need == auth.Admin {
		of = append(of, "@dangerous")
	}
	if d.first == 0 {
		of = append(of, "@connection")
	}
	return of
}

// keySpec tells where a command's keys are.
func (c *conn) keySpec(d *definition) {
	flag, last := "RO", 0
	if d.need&auth.Write != 0 {
		flag = "RW"
	}
	if d.last < 0 {
		last = -1
	}
	c.fields(3)
	c.text("flags")
	c.words([]string{flag})
	c.text("begin_search")
	c.fields(2)
	c.text("type")
	c.text("index")
	c.text("spec")
	c.fields(1)
	c.text("index")
	c.int(int64(d.first))
	c.text("find_keys")
	c.fields(2)
	c.text("type")
	c.text("range")
	c.text("spec")
	c.fields(3)
	for _, f := range []struct {
		name string
		n    int
	}{{"lastkey", last}, {"keystep", d.step}, {"limit", 0}} {
		c.text(f.name)
		c.int(int64(f.n))
	}
}

// cmdClient is the part of CLIENT that clients send by themselves, and LIST.
func (c *conn) cmdClient(_ context.Context, cmd command) error {
	sub := upper(cmd.args[1])
	switch {
	case sub == "ID":
		c.int(c.id)
	case sub == "GETNAME":
		if name := c.about.get().client; name != "" {
			c.text(name)
		} else {
			c.null()
		}
	case sub == "SETNAME" && len(cmd.args) == 3:
		if err := c.setName(string(cmd.args[2])); err != nil {
			return c.fail(err)
		}
		c.ok()
	case sub == "SETINFO" && len(cmd.args) == 4, sub == "NO-EVICT" && len(cmd.args) == 3, sub == "NO-TOUCH" && len(cmd.args) == 3:
		c.ok()
	case sub == "INFO":
		c.text(c.line(c.s.o.Clock()))
	case sub == "LIST":
		var b strings.Builder
		for _, o := range c.s.connections() {
			if o.about.get().tenant == c.identity.Tenant || c.identity.Rights&auth.Operator != 0 {
				b.WriteString(o.line(c.s.o.Clock()))
			}
		}
		c.text(b.String())
	default:
		return c.fail(replyError("ERR unknown subcommand or wrong number of arguments for 'client|" + strings.ToLower(printable(sub)) + "'"))
	}
	return nil
}

func (c *conn) setName(name string) error {
	if len(name) > 256 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return replyError("ERR Client names cannot contain spaces, newlines or special characters.")
	}
	c.about.set(func(a *aboutInfo) { a.client = name })
	return nil
}

// line describes the connection as CLIENT LIST of redisVersion does: all its fields, those of what there is not here, and
// of memory, which is not counted by connection, 0 or none.
func (c *conn) line(now time.Time) string {
	a := c.about.get()
	return fmt.Sprintf("id=%d addr=%s laddr=%s fd=0 name=%s age=%d idle=%d flags=N db=%d sub=0 psub=0 ssub=0 multi=-1 qbuf=0 qbuf-free=0 "+
		"argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd=%s user=%s redir=-1 resp=%d\n",
		c.id, c.raw.RemoteAddr(), c.raw.LocalAddr(), a.client, int(now.Sub(c.about.since).Seconds()), int(now.Sub(a.last).Seconds()), a.db,
		cmp.Or(strings.ToLower(printable(a.command)), "NULL"), a.tenant, max(a.proto, 2))
}

// cmdConfig answers CONFIG GET for the few settings that tools ask for.
func (c *conn) cmdConfig(_ context.Context, cmd command) error {
	if upper(cmd.args[1]) != "GET" || len(cmd.args) < 3 {
		return c.fail(replyError("ERR CONFIG is for reading here: skep serve has its own configuration"))
	}
	known := [][2]string{{"appendonly", "no"}, {"databases", strconv.Itoa(databases)}, {"maxmemory", "0"}, {"save", ""}}
	var out [][2]string
	for _, kv := range known {
		for _, p := range cmd.args[2:] {
			if ok, _ := glob(p, []byte(kv[0])); ok {
				out = append(out, kv)
				break
			}
		}
	}
	c.fields(len(out))
	for _, kv := range out {
		c.text(kv[0])
		c.text(kv[1])
	}
	return nil
}

// cmdInfo tells of the server and the tenant's own use; of the whole store only who
// administers it.
func (c *conn) cmdInfo(ctx context.Context, cmd command) error {
	want := map[string]bool{}
	for _, a := range cmd.args[1:] {
		want[upper(a)] = true
	}
	blobs := want["LARGEOBJ"] || want["MODULES"] || want["EVERYTHING"]
	all := len(want) == 0 || want["ALL"] || want["DEFAULT"] || want["EVERYTHING"]
	var b strings.Builder
	section := func(name string, f func(add func(k string, v any))) {
		if !all && !want[strings.ToUpper(name)] && !(blobs && strings.HasPrefix(name, "largeobj_")) {
			return
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		fmt.Fprintf(&b, "# %s\r\n", name)
		f(func(k string, v any) { fmt.Fprintf(&b, "%s:%v\r\n", k, v) })
	}
	st := &c.tenant.stats
	section("Server", func(add func(string, any)) {
		add("redis_version", redisVersion)
		add("server_name", "skep")
		add("redis_mode", c.mode(ctx))
		add("os", runtime.GOOS)
		add("arch_bits", strconv.IntSize)
		add("uptime_in_seconds", int(c.s.o.Clock().Sub(c.s.started).Seconds()))
	})
	section("Clients", func(add func(string, any)) { add("connected_clients", c.s.count(c.identity.Tenant)) })
	section("Stats", func(add func(string, any)) {
		add("keyspace_hits", st.hits.Load())
		add("keyspace_misses", st.misses.Load())
		add("exists_leases_denied", c.tenant.leases.refused())
	})
	section("Replication", func(add func(string, any)) {
		add("role", "master") // a client that looks for whom to write to takes no other
		add("connected_slaves", 0)
		add("master_repl_offset", 0)
	})
	section("Cluster", func(add func(string, any)) {
		enabled := 0
		if c.mode(ctx) == "cluster" {
			enabled = 1
		}
		add("cluster_enabled", enabled)
	})
	if c.identity.Rights&auth.Operator != 0 {
		c.storeInfo(ctx, section)
	}
	var keys int64
	if all || want["KEYSPACE"] || blobs {
		if db, err := c.database(); err == nil {
			keys, _ = db.count(ctx)
		}
	}
	section("Keyspace", func(add func(string, any)) {
		if keys > 0 {
			add("db"+strconv.Itoa(c.number), fmt.Sprintf("keys=%d,expires=0,avg_ttl=0", keys))
		}
	})
	if blobs {
		c.blobInfo(ctx, keys, section)
	}
	c.text(b.String())
	return nil
}

func (c *conn) storeInfo(ctx context.Context, section func(string, func(func(string, any)))) {
	stats, err := c.s.store.Stats(ctx)
	if err != nil {
		return
	}
	section("Memory", func(add func(string, any)) {
		var used int64
		for _, m := range stats.Memory {
			used += m.Used
		}
		add("used_memory", used)
		if n := resident(); n > 0 {
			add("used_memory_rss", n) // with the program and what Go keeps
		}
	})
	section("Store", func(add func(string, any)) {
		add("state", stats.State)
		add("backend", stats.Backend)
		add("blocks", stats.Blocks)
		add("block_bytes", stats.BlockBytes)
		add("capacity_bytes", stats.CapacityBytes)
		add("evicted_blocks", stats.Evicted)
		add("evicted_unread_blocks", stats.EvictedUnread)
		add("damaged_granules", stats.Damaged)
		add("leases", stats.Leases)
	})
}
