package resp

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// definition is a command: how many arguments it takes (its name counts), what it
// needs, and what does it.
type definition struct {
	min, max int // max 0: any number
	even     bool
	need     auth.Rights
	stranger bool // allowed before AUTH
	first    int  // argument that is the first key; 0: none
	last     int  // the last, from the end when negative
	step     int
	flags    string // as COMMAND tells them
	do       func(c *conn, ctx context.Context, cmd command) error
	// run also answers the commands of its kind behind it, and says how many keys it was.
	run func(c *conn, ctx context.Context, cmd command) (int, error)
}

func (d *definition) keys(args int) int {
	switch {
	case d.first == 0:
		return 0
	case d.last < 0:
		return (args-d.first)/d.step + min((args-d.first)%d.step, 1)
	}
	return 1
}

var commands map[string]*definition

func init() { // the handlers of COMMAND read the table
	commands = map[string]*definition{
		"AUTH":    {min: 2, max: 3, stranger: true, flags: "noscript loading stale fast", do: (*conn).cmdAuth},
		"HELLO":   {min: 1, stranger: true, flags: "noscript loading stale fast", do: (*conn).cmdHello},
		"PING":    {min: 1, max: 2, flags: "fast", do: (*conn).cmdPing},
		"ECHO":    {min: 2, max: 2, flags: "fast", do: (*conn).cmdEcho},
		"QUIT":    {min: 1, stranger: true, flags: "fast", do: (*conn).cmdQuit},
		"RESET":   {min: 1, max: 1, flags: "fast", do: (*conn).cmdReset},
		"SELECT":  {min: 2, max: 2, flags: "loading stale fast", do: (*conn).cmdSelect},
		"COMMAND": {min: 1, flags: "loading stale", do: (*conn).cmdCommand},
		"CLIENT":  {min: 2, flags: "noscript loading stale", do: (*conn).cmdClient},
		"CONFIG":  {min: 2, flags: "noscript loading stale", do: (*conn).cmdConfig},
		"INFO":    {min: 1, flags: "loading stale", do: (*conn).cmdInfo},
		"ROLE":    {min: 1, max: 1, flags: "noscript loading stale fast", do: (*conn).cmdRole},
		"CLUSTER": {min: 2, flags: "loading stale", do: (*conn).cmdCluster},
		"TIME":    {min: 1, max: 1, flags: "fast", do: (*conn).cmdTime},

		"READONLY":  {min: 1, max: 1, flags: "loading stale fast", do: (*conn).cmdSlotMode},
		"READWRITE": {min: 1, max: 1, flags: "loading stale fast", do: (*conn).cmdSlotMode},
		"ASKING":    {min: 1, max: 1, flags: "fast", do: (*conn).cmdSlotMode},

		"GET":    {min: 2, max: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly fast", run: (*conn).cmdGet},
		"MGET":   {min: 2, need: auth.Read, first: 1, last: -1, step: 1, flags: "readonly", run: (*conn).cmdMGet},
		"EXISTS": {min: 2, need: auth.Read, first: 1, last: -1, step: 1, flags: "readonly fast", run: (*conn).cmdExists},
		"TOUCH":  {min: 2, need: auth.Read, first: 1, last: -1, step: 1, flags: "readonly fast", run: (*conn).cmdExists},
		"STRLEN": {min: 2, max: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly fast", do: (*conn).cmdStrlen},
		"TYPE":   {min: 2, max: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly fast", do: (*conn).cmdType},
		"TTL":    {min: 2, max: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly fast", do: (*conn).cmdTTL},
		"PTTL":   {min: 2, max: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly fast", do: (*conn).cmdTTL},
		"SCAN":   {min: 2, need: auth.Read, flags: "readonly", do: (*conn).cmdScan},
		"DBSIZE": {min: 1, max: 1, need: auth.Read, flags: "readonly fast", do: (*conn).cmdDBSize},

		"SET":       {min: 3, need: auth.Write, first: 1, last: 1, step: 1, flags: "write denyoom", run: (*conn).cmdSet},
		"SETNX":     {min: 3, max: 3, need: auth.Write, first: 1, last: 1, step: 1, flags: "write denyoom fast", run: (*conn).cmdSet},
		"SETEX":     {min: 4, max: 4, need: auth.Write, first: 1, last: 1, step: 1, flags: "write denyoom", run: (*conn).cmdSet},
		"PSETEX":    {min: 4, max: 4, need: auth.Write, first: 1, last: 1, step: 1, flags: "write denyoom", run: (*conn).cmdSet},
		"MSET":      {min: 3, even: true, need: auth.Write, first: 1, last: -1, step: 2, flags: "write denyoom", run: (*conn).cmdMSet},
		"DEL":       {min: 2, need: auth.Write, first: 1, last: -1, step: 1, flags: "write", do: (*conn).cmdDel},
		"UNLINK":    {min: 2, need: auth.Write, first: 1, last: -1, step: 1, flags: "write fast", do: (*conn).cmdDel},
		"EXPIRE":    {min: 3, max: 7, need: auth.Write, first: 1, last: 1, step: 1, flags: "write fast", do: (*conn).cmdExpire},
		"PEXPIRE":   {min: 3, max: 7, need: auth.Write, first: 1, last: 1, step: 1, flags: "write fast", do: (*conn).cmdExpire},
		"EXPIREAT":  {min: 3, max: 7, need: auth.Write, first: 1, last: 1, step: 1, flags: "write fast", do: (*conn).cmdExpire},
		"PEXPIREAT": {min: 3, max: 7, need: auth.Write, first: 1, last: 1, step: 1, flags: "write fast", do: (*conn).cmdExpire},
		"PERSIST":   {min: 2, max: 2, need: auth.Write, first: 1, last: 1, step: 1, flags: "write fast", do: (*conn).cmdPersist},
		"FLUSHDB":   {min: 1, max: 2, need: auth.Admin, flags: "write", do: (*conn).cmdFlush},
		"FLUSHALL":  {min: 1, max: 2, need: auth.Admin, flags: "write", do: (*conn).cmdFlush},

		"BLOB.TCP_SET":    {min: 3, max: 3, need: auth.Write, first: 1, last: 1, step: 1, flags: "write denyoom", run: (*conn).cmdSet},
		"BLOB.TCP_GET":    {min: 2, max: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly", run: (*conn).cmdGet},
		"BLOB.INFO":       {min: 2, max: 3, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly", run: (*conn).cmdBlobInfo},
		"BLOB.RDMA_HELLO": {min: 2, max: 2, flags: "fast", do: (*conn).cmdRDMA},
		"BLOB.RDMA_SET":   {min: 3, need: auth.Write, first: 1, last: 1, step: 1, flags: "write denyoom", do: (*conn).cmdRDMA},
		"BLOB.RDMA_GET":   {min: 2, need: auth.Read, first: 1, last: 1, step: 1, flags: "readonly", do: (*conn).cmdRDMA},
	}
}

const (
	errSyntax  = replyError("ERR syntax error")
	errInteger = replyError("ERR value is not an integer or out of range")
	errKey     = replyError("ERR key is longer than 65536 bytes")
	errPattern = replyError("ERR pattern is longer than 1024 bytes")
)

func unknownCommand(name string) error {
	return replyError(fmt.Sprintf("ERR unknown command '%s'", printable(name)))
}

func wrongArgs(name string) error {
	return replyError(fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(name)))
}

// printable is s without what would break a reply.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '\'' {
			return '?'
		}
		return r
	}, s)
}

// integer reads a number as Redis does: in its one shortest form.
func integer(b []byte) (int64, error) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != string(b) {
		return 0, errInteger
	}
	return n, nil
}

// cmdGet answers a run of GETs, or of BLOB.TCP_GETs.
func (c *conn) cmdGet(ctx context.Context, cmd command) (int, error) {
	name := upper(cmd.args[0])
	keys := [][]byte{bytes.Clone(cmd.args[1])}
	for len(keys) < maxRun && c.p.buffered(name) {
		next, err := c.p.read()
		tell := c.broken
		if err == nil {
			err, tell = c.permitted(commands[name], name, len(next.args)), c.fail
		}
		if err != nil { // what came before it is answered
			if err := c.get(ctx, keys, false); err != nil {
				return len(keys), err
			}
			return len(keys), tell(err)
		}
		keys = append(keys, bytes.Clone(next.args[1]))
	}
	return len(keys), c.get(ctx, keys, false)
}

// maxRun is how many pipelined commands of a kind are answered as one.
const maxRun = 256

func (c *conn) cmdMGet(ctx context.Context, cmd command) (int, error) {
	return len(cmd.args) - 1, c.get(ctx, cmd.args[1:], true)
}

// cmdExists answers a run of EXISTS, each for as many keys as it names.
func (c *conn) cmdExists(ctx context.Context, cmd command) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.o.OpTimeout)
	defer cancel()
	var keys [][]byte
	var ends []int
	add := func(args [][]byte) {
		for _, k := range args {
			keys = append(keys, bytes.Clone(k))
		}
		ends = append(ends, len(keys))
	}
	add(cmd.args[1:])
	var refused, broken error
	for len(ends) < maxRun && c.p.buffered("EXISTS") {
		next, err := c.p.read()
		if broken = err; err != nil { // what came before it is answered
			break
		}
		if refused = c.permitted(commands["EXISTS"], "EXISTS", len(next.args)); refused != nil {
			break
		}
		add(next.args[1:])
	}
	db, err := c.database()
	if err != nil {
		if err := c.noOnes(err, len(ends)); err != nil || broken == nil {
			return 0, err
		}
		return 0, c.broken(broken)
	}
	there := db.exists(ctx, keys, c.s.o.ExistsLease)
	db.hintRun(ctx, there)
	from := 0
	for _, to := range ends {
		n := int64(0)
		for _, h := range there[from:to] {
			if h != nil {
				c.expects(h.key, h.size)
				n++
			}
		}
		if n == 0 {
			c.outcome = "miss"
		}
		c.int(n)
		from = to
	}
	if refused != nil {
		return len(keys), c.noOnes(refused, 1)
	}
	if broken != nil {
		return len(keys), c.broken(broken)
	}
	return len(keys), c.flushIfLarge()
}

// hintRun tells the store that the values of a batch of keys that are there go together and will be
// read soon: whoever asks for several at once is about to load them.
func (db *database) hintRun(ctx context.Context, there []*head) {
	if len(there) < 2 {
		return
	}
	var pieces []skep.Key
	program := ""
	for _, h := range there {
		if h != nil && h.piece != 0 {
			if program == "" {
				program = "resp/" + skep.KeyOf(h.key).Short()
			}
			if pieces = append(pieces, h.pieceKeys(0, h.pieces())...); len(pieces) > maxPieces {
				return // nobody loads that much soon
			}
		}
	}
	if len(pieces) > 0 {
		_, _ = db.store.Hint(ctx, skep.Scope{Namespace: db.data}, pieces, skep.Hint{NextUse: time.Second, Program: program})
	}
}

// cmdSet answers a run: a SET or one of its forms, and the SETs behind it, or BLOB.TCP_SETs. Their heads are stored in one put.
func (c *conn) cmdSet(ctx context.Context, cmd command) (int, error) {
	name, more := upper(cmd.args[0]), "SET"
	if name == blobSet {
		more = blobSet
	}
	ops := []*setOp{c.setOp(name, cmd)}
	sum := ops[0].bytes()
	kinds := []string{name}
	var broken error
	for len(ops) < maxRun && sum < maxRunBytes && c.p.next(more) {
		next, err := c.p.read()
		if err != nil {
			c.dropValues(next.values)
			broken = err
			break
		}
		var op *setOp
		if err := c.permitted(commands[more], more, len(next.args)); err != nil {
			c.dropValues(next.values)
			op = &setOp{value: &value{}, err: err}
		} else {
			op = c.setOp(more, next)
			sum += op.bytes()
		}
		ops, kinds = append(ops, op), append(kinds, more)
	}
	op, cancel := context.WithTimeout(ctx, c.s.o.OpTimeout) // from now: the peer took its own time to send
	defer cancel()
	c.apply(op, ops)
	for i, op := range ops {
		switch {
		case op.err != nil:
			if err := c.fail(op.err); err != nil {
				return len(ops), err
			}
		case kinds[i] == "SETNX":
			c.int(boolInt(op.done))
		case op.done:
			c.ok()
		default:
			c.null()
		}
	}
	if broken != nil {
		return len(ops), c.broken(broken)
	}
	return len(ops), c.flushIfLarge()
}

const maxRunBytes = 64 << 20

// apply sets those ops that are right.
func (c *conn) apply(ctx context.Context, ops []*setOp) {
	good := make([]*setOp, 0, len(ops))
	for _, op := range ops {
		if op.err == nil {
			good = append(good, op)
		} else if op.value != nil {
			c.dropValues([]*value{op.value})
		}
	}
	if len(good) == 0 {
		return
	}
	db, err := c.databaseToSet()
	if err != nil {
		for _, op := range good {
			op.err = err
			unlock := c.db.lock(op.key)
			c.db.decline(ctx, []*setOp{op})
			unlock()
		}
		return
	}
	db.set(ctx, good)
}

// setOp reads SET key value [NX|XX] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL], and its older
// forms.
func (c *conn) setOp(name string, cmd command) *setOp {
	op := &setOp{lockstep: c.lockstep}
	if len(cmd.values) != 1 {
		op.value, op.err = &value{}, wrongArgs(name)
		return op
	}
	op.value = cmd.values[0]
	if len(cmd.args[1]) > MaxKeyBytes {
		op.err = errKey
		return op
	}
	op.key = bytes.Clone(cmd.args[1])
	c.keys += int64(len(op.key))
	c.expects(op.key, op.value.size)
	now := c.s.times()
	switch name {
	case "SETNX":
		op.ifNone = true
	case "SETEX":
		op.expiry, op.err = expiryOf(name, "EX", cmd.args[2], now, true)
	case "PSETEX":
		op.expiry, op.err = expiryOf(name, "PX", cmd.args[2], now, true)
	case blobSet:
		if op.value.size == 0 {
			op.err = errNoBytes
		}
	default:
		op.err = op.options(cmd.args[3:], now)
	}
	return op
}

// options reads them as Redis does: one may be repeated, and the last of it counts.
func (op *setOp) options(args [][]byte, now times) (err error) {
	ttl, when := "", []byte(nil)
	for i := 0; i < len(args); i++ {
		o := upper(args[i])
		switch o {
		case "KEEPTTL", "EX", "PX", "EXAT", "PXAT":
			if ttl != "" && ttl != o {
				return errSyntax
			}
			ttl = o
		}
		switch o {
		case "NX":
			op.ifNone = true
		case "XX":
			op.ifThere = true
		case "KEEPTTL":
			op.keepTTL = true
		case "EX", "PX", "EXAT", "PXAT":
			if i++; i == len(args) {
				return errSyntax
			}
			when = args[i]
		default:
			return errSyntax
		}
	}
	if op.ifNone && op.ifThere {
		return errSyntax
	}
	if when != nil {
		op.expiry, err = expiryOf("SET", ttl, when, now, true)
	}
	return err
}

// expiryOf turns "EX 10" and its like, of a command, into milliseconds since 1970.
func expiryOf(command, unit string, arg []byte, now times, positive bool) (int64, error) {
	n, err := integer(arg)
	if err != nil {
		return 0, err
	}
	invalid := replyError("ERR invalid expire time in '" + strings.ToLower(command) + "' command")
	if positive && n <= 0 {
		return 0, invalid
	}
	if unit == "EX" || unit == "EXAT" {
		if n > math.MaxInt64/1000 || n < math.MinInt64/1000 {
			return 0, invalid
		}
		n *= 1000
	}
	more := now.ahead
	if unit == "EX" || unit == "PX" {
		more = now.clock
	}
	if more > 0 && n > math.MaxInt64-more || more < 0 && n < math.MinInt64-more {
		return 0, invalid
	}
	n += more
	return max(n, 1), nil // 0 would be none, and what is past is past
}

func (c *conn) cmdMSet(ctx context.Context, cmd command) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.o.OpTimeout)
	defer cancel()
	var ops []*setOp
	for i, v := range cmd.values {
		op := &setOp{key: cmd.args[1+2*i], value: v}
		if len(op.key) > MaxKeyBytes {
			op.err = errKey
		}
		ops = append(ops, op)
	}
	c.apply(ctx, ops)
	for _, op := range ops {
		if op.err != nil {
			return len(ops), c.fail(op.err)
		}
	}
	c.ok()
	return len(ops), nil
}

func (c *conn) cmdDel(ctx context.Context, cmd command) error {
	open := c.database
	if c.s.o.Cluster != nil { // a node that is away may have one that nobody else knows of
		open = c.databaseToSet
	}
	db, err := open()
	if err != nil {
		return c.fail(err)
	}
	n, err := db.delete(ctx, cmd.args[1:])
	if err != nil {
		return c.fail(err)
	}
	c.int(int64(n))
	return nil
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
