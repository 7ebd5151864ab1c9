package resp

import (
	"context"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// blobSet is a SET of Valkey's module for large objects. Its commands are those of its versions 0.x, and may change until its
// 1.0. A large object is a value like any other here: GET reads what BLOB.TCP_SET stored, and the other way round.
const (
	blobSet = "BLOB.TCP_SET"

	errNoRDMA    = replyError("ERR RDMA provider unavailable on this instance")
	errNoBytes   = replyError("ERR object length must be > 0")
	errInfoField = replyError("ERR invalid information field")
)

// cmdRole says that this is where to write to, and that nothing follows it.
func (c *conn) cmdRole(context.Context, command) error {
	c.array(3)
	c.text("master")
	c.int(0)
	c.array(0)
	return nil
}

// cmdRDMA refuses to move bytes by RDMA, in the words of a server whose machine has none; clients go on over TCP.
func (c *conn) cmdRDMA(context.Context, command) error { return c.fail(errNoRDMA) }

// blobFields are what BLOB.INFO tells, in its order.
var blobFields = []string{"len", "crc", "tier"}

// cmdBlobInfo is BLOB.INFO key [LEN|CRC|TIER]. For the checksum the value is read.
func (c *conn) cmdBlobInfo(ctx context.Context, cmd command) (int, error) {
	fields := blobFields
	if len(cmd.args) == 3 {
		if fields = []string{strings.ToLower(upper(cmd.args[2]))}; !slices.Contains(blobFields, fields[0]) {
			return 1, c.fail(errInfoField)
		}
	}
	db, err := c.database()
	if err != nil {
		return 1, c.fail(err)
	}
	op, cancel := context.WithTimeout(ctx, c.s.o.OpTimeout)
	defer cancel()
	run := c.find(op, db, [][]byte{cmd.args[1]})
	defer c.letGo(db, run)
	o, told := &run[0], map[string]func(){}
	for _, f := range fields {
		switch {
		case o.err != nil:
		case f == "len":
			told[f] = func() { c.int(o.h.size) }
		case f == "crc":
			var sum uint32
			sum, o.err = c.checksum(ctx, db, run)
			told[f] = func() { c.int(int64(sum)) }
		case f == "tier":
			var tier string
			tier, o.err = db.tier(op, o.h)
			told[f] = func() { c.text(tier) }
		}
	}
	if o.err != nil {
		return 1, c.small(o)
	}
	if len(cmd.args) == 2 {
		c.array(2 * len(fields))
	}
	for _, f := range fields {
		if len(cmd.args) == 2 {
			c.text(f)
		}
		told[f]()
	}
	return 1, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC32C of the only value of a run. Its bytes are checked by the store as they are read, and count as sent.
func (c *conn) checksum(ctx context.Context, db *database, run []outgoing) (uint32, error) {
	if _ = c.admit(run, 0, false); run[0].err != nil {
		return 0, run[0].err
	}
	h := run[0].h
	sum := crc32.Checksum(h.inline, castagnoli)
	all := c.pieces(ctx, db, run)
	defer all.close()
	for p := range h.pieces() {
		ch, err := all.take(0, p)
		if err != nil {
			return 0, err
		}
		for _, b := range ch.Data {
			sum = crc32.Update(sum, castagnoli, b)
		}
		ch.Release()
	}
	return sum, nil
}

// tier is where a value is read from: dram when all of it is there.
func (db *database) tier(ctx context.Context, h *head) (string, error) {
	r := &skep.LookupRequest{Scope: skep.Scope{Namespace: db.data}, Keys: h.pieceKeys(0, h.pieces()), Lease: skep.NoLease, Tiers: true}
	if h.piece == 0 {
		r.Namespace, r.Keys = db.heads, []skep.Key{skep.KeyOf(h.key)}
	}
	found, err := db.store.Lookup(skep.Uncounted(ctx), r)
	switch {
	case err != nil:
		return "", err
	case found.Blocks < len(r.Keys):
		return "", errNone
	case slices.ContainsFunc(found.Tiers, func(t skep.Tier) bool { return t != skep.TierDRAM }):
		return "disk", nil
	}
	return "dram", nil
}

// blobInfo is what INFO tells of large objects: how many keys the selected database has, and of the whole store only to
// who administers it.
func (c *conn) blobInfo(ctx context.Context, keys int64, section func(string, func(func(string, any)))) {
	section("largeobj_disk", func(add func(string, any)) {
		add("largeobj_live_objects", keys)
		if c.identity.Rights&auth.Operator == 0 {
			return
		}
		if stats, err := c.s.store.Stats(ctx); err == nil {
			add("largeobj_disk_used_bytes", stats.BlockBytes)
			add("largeobj_disk_maxmemory_bytes", stats.CapacityBytes)
		}
	})
}
