package resp

import (
	"context"
	"strconv"
)

// withHead finds the key a command names and replies with what f says, or none when it
// is not there.
func (c *conn) withHead(ctx context.Context, key []byte, none func(), f func(h *head)) error {
	db, err := c.database()
	if err != nil {
		return c.fail(err)
	}
	h, err := db.head(ctx, key)
	switch {
	case err == nil:
		f(h)
	case isMiss(err):
		c.outcome = "miss"
		none()
	default:
		return c.fail(err)
	}
	return nil
}

func (c *conn) cmdStrlen(ctx context.Context, cmd command) error {
	return c.withHead(ctx, cmd.args[1], func() { c.int(0) }, func(h *head) { c.int(h.size) })
}

func (c *conn) cmdType(ctx context.Context, cmd command) error {
	return c.withHead(ctx, cmd.args[1], func() { c.simple("none") }, func(*head) { c.simple("string") })
}

// cmdTTL is TTL and PTTL: what is left, -1 for a key that does not expire, -2 for none.
func (c *conn) cmdTTL(ctx context.Context, cmd command) error {
	return c.withHead(ctx, cmd.args[1], func() { c.int(-2) }, func(h *head) {
		left := max(h.expiry-c.s.o.Clock().UnixMilli(), 0) // it was there a moment ago
		switch {
		case h.expiry == 0:
			left = -1
		case upper(cmd.args[0]) == "TTL":
			left = (left + 500) / 1000
		}
		c.int(left)
	})
}

// cmdExpire is EXPIRE and its forms, with NX, XX, GT, LT.
func (c *conn) cmdExpire(ctx context.Context, cmd command) error {
	unit := map[string]string{"EXPIRE": "EX", "PEXPIRE": "PX", "EXPIREAT": "EXAT", "PEXPIREAT": "PXAT"}[upper(cmd.args[0])]
	expiry, err := expiryOf(upper(cmd.args[0]), unit, cmd.args[2], c.s.times(), false)
	if err != nil {
		return c.fail(err)
	}
	when, err := expireWhen(cmd.args[3:], expiry)
	if err != nil {
		return c.fail(err)
	}
	db, err := c.database()
	if err != nil {
		return c.fail(err)
	}
	_, _, changed, err := db.expire(ctx, cmd.args[1], expiry, when)
	if err != nil {
		return c.fail(err)
	}
	c.int(boolInt(changed))
	return nil
}

// expireWhen says which keys EXPIRE's options let have the expiry: those that meet all.
func expireWhen(options [][]byte, expiry int64) (func(*head) bool, error) {
	var nx, xx, gt, lt bool
	for _, o := range options {
		switch upper(o) {
		case "NX":
			nx = true
		case "XX":
			xx = true
		case "GT":
			gt = true
		case "LT":
			lt = true
		default:
			return nil, replyError("ERR Unsupported option " + printable(string(o)))
		}
	}
	if nx && (xx || gt || lt) {
		return nil, replyError("ERR NX and XX, GT or LT options at the same time are not compatible")
	}
	if gt && lt {
		return nil, replyError("ERR GT and LT options at the same time are not compatible")
	}
	return func(h *head) bool {
		has := h.expiry != 0
		return (!nx || !has) && (!xx || has) && (!gt || has && expiry > h.expiry) && (!lt || !has || expiry < h.expiry)
	}, nil
}

func (c *conn) cmdPersist(ctx context.Context, cmd command) error {
	db, err := c.database()
	if err != nil {
		return c.fail(err)
	}
	_, _, changed, err := db.expire(ctx, cmd.args[1], 0, func(h *head) bool { return h.expiry != 0 })
	if err != nil {
		return c.fail(err)
	}
	c.int(boolInt(changed))
	return nil
}

// cmdScan is SCAN cursor [MATCH pattern] [COUNT n] [TYPE string].
func (c *conn) cmdScan(ctx context.Context, cmd command) error {
	cursor, err := strconv.ParseUint(string(cmd.args[1]), 10, 64)
	if err != nil {
		return c.fail(replyError("ERR invalid cursor"))
	}
	count, pattern, none := int64(10), []byte(nil), false
	for i := 2; i < len(cmd.args); i += 2 {
		if i+1 == len(cmd.args) {
			return c.fail(errSyntax)
		}
		v := cmd.args[i+1]
		switch upper(cmd.args[i]) {
		case "MATCH":
			if pattern = v; len(pattern) > maxPatternBytes {
				return c.fail(errPattern)
			}
		case "COUNT":
			if count, err = integer(v); err != nil {
				return c.fail(err)
			}
			if count < 1 {
				return c.fail(errSyntax)
			}
		case "TYPE":
			none = upper(v) != "STRING"
		default:
			return c.fail(errSyntax)
		}
	}
	db, err := c.database()
	if err != nil {
		return c.fail(err)
	}
	next, keys, err := db.scan(ctx, cursor, int(min(count, maxScan)), len(pattern), func(key []byte) (bool, int) {
		if none || pattern == nil {
			return !none, 0
		}
		return glob(pattern, key)
	})
	if err != nil {
		return c.fail(err)
	}
	c.array(2)
	c.text(strconv.FormatUint(next, 10))
	c.array(len(keys))
	for _, k := range keys {
		c.bulk(k)
	}
	return c.flushIfLarge()
}

// Bounds of SCAN's arguments: it looks at no more keys, and takes no longer pattern.
const (
	maxScan         = 1_000
	maxPatternBytes = 1 << 10
)

func (c *conn) cmdDBSize(ctx context.Context, _ command) error {
	db, err := c.database()
	if err != nil {
		return c.fail(err)
	}
	n, err := db.count(ctx)
	if err != nil {
		return c.fail(err)
	}
	c.int(n)
	return nil
}

// cmdFlush is FLUSHDB, which empties the selected database, and FLUSHALL, which empties all of the tenant's.
func (c *conn) cmdFlush(ctx context.Context, cmd command) error {
	if len(cmd.args) == 2 && upper(cmd.args[1]) != "ASYNC" && upper(cmd.args[1]) != "SYNC" {
		return c.fail(errSyntax)
	}
	if c.s.o.Cluster != nil { // what is on a node that does not answer would be there again afterwards
		if err := c.s.store.Flush(ctx); err != nil {
			return c.fail(err)
		}
		c.s.spaces.forget()
	}
	from, to := c.number, c.number+1
	if upper(cmd.args[0]) == "FLUSHALL" {
		from, to = 0, databases
	}
	for n := from; n < to; n++ {
		db, err := c.s.opened(ctx, c.s.database(c.tenant, n), (*database).find)
		if err == nil && db.made.Load() {
			err = db.flush(ctx)
		}
		if err != nil {
			return c.fail(err)
		}
	}
	c.ok()
	return nil
}

// glob matches as Redis does: * any run, ? any byte, [abc], [^abc], [a-z], \ takes the
// next byte as it is. work is how many bytes of the pattern it went over: at most twice the product of the lengths.
func glob(pattern, s []byte) (ok bool, work int) {
	p, i := 0, 0
	star, mark := -1, 0
	for i < len(s) {
		if p < len(pattern) && pattern[p] == '*' {
			star, mark = p, i
			p++
			continue
		}
		n, ok := globOne(pattern[p:], s[i])
		if work += max(n, 1); ok {
			p += n
			i++
			continue
		}
		if star < 0 {
			return false, work
		}
		mark++
		p, i = star+1, mark
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern), work
}

// globOne matches one byte against the pattern's first element, n bytes long.
func globOne(p []byte, c byte) (n int, ok bool) {
	if len(p) == 0 {
		return 0, false
	}
	switch {
	case p[0] == '?':
		return 1, true
	case p[0] == '\\' && len(p) > 1:
		return 2, p[1] == c
	case p[0] != '[':
		return 1, p[0] == c
	}
	n = 1
	not := n < len(p) && p[n] == '^'
	if not {
		n++
	}
	for n < len(p) && p[n] != ']' {
		from := p[n]
		if from == '\\' && n+1 < len(p) {
			n++
			from = p[n]
		}
		to := from
		if n+2 < len(p) && p[n+1] == '-' && p[n+2] != ']' {
			to = p[n+2]
			n += 2
		}
		n++
		ok = ok || min(from, to) <= c && c <= max(from, to)
	}
	return min(n+1, len(p)), ok != not
}
