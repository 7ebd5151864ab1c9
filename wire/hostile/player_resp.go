package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// respPlayer speaks RESP, right and wrong.
type respPlayer struct{}

// Name implements Player.
func (respPlayer) Name() string { return "resp" }

// Play implements Player.
func (respPlayer) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	c, err := t.Dial(ctx, Resp, r)
	if err != nil {
		return nil // refused
	}
	talk := respTalk(r)
	if r.IntN(3) > 0 {
		talk = Mutate(r, talk)
	}
	return Deliver(ctx, r, c, bytes.Join(talk, nil))
}

// respTalk is a conversation that begins with one of the credentials, or none.
func respTalk(r *rand.Rand) [][]byte {
	var talk [][]byte
	for range r.IntN(3) {
		talk = append(talk, respLogin(r))
	}
	n := 1 + r.IntN(12)
	if r.IntN(8) == 0 {
		n = 300
	}
	room := 5 << 20 // of what a player may hold
	for range n {
		cmd := respCommand(r)
		if room -= len(cmd); room < 0 {
			break
		}
		talk = append(talk, cmd)
	}
	return talk
}

func respLogin(r *rand.Rand) []byte {
	token := []byte([]string{TokenHostile, TokenHostile, TokenHostile, TokenReader, TokenWrong}[r.IntN(5)])
	switch r.IntN(4) {
	case 0:
		return Command("HELLO", []byte("3"), []byte("AUTH"), []byte("default"), token)
	case 1:
		return Command("AUTH", []byte(HonestTenant), token)
	}
	return Command("AUTH", token)
}

// respKey is a key of the hostile tenant, or one that an honest client has.
func respKey(r *rand.Rand) []byte {
	if r.IntN(2) == 0 {
		return fmt.Appendf(nil, "resp over tcp/%d", r.IntN(honestKeys))
	}
	return fmt.Appendf(nil, "k%d", r.IntN(40))
}

func respKeys(r *rand.Rand, n int) (keys [][]byte) {
	for range n {
		keys = append(keys, respKey(r))
	}
	return keys
}

func respValue(r *rand.Rand) []byte {
	n := r.IntN(600)
	switch r.IntN(12) {
	case 0:
		n = r.IntN(3 << 20)
	case 1, 2, 3:
		n = r.IntN(40 << 10)
	}
	return bytes.Repeat([]byte{'h'}, n)
}

func respCommand(r *rand.Rand) []byte {
	k := respKey(r)
	num := func(n int) []byte { return strconv.AppendInt(nil, int64(r.IntN(n)), 10) }
	switch r.IntN(24) {
	case 0, 1, 2:
		return Command("SET", k, respValue(r))
	case 3:
		return Command("SET", k, respValue(r), []byte("PX"), num(500))
	case 4, 5, 6:
		return Command("GET", k)
	case 7:
		return Command("MGET", respKeys(r, 1+r.IntN(2000))...)
	case 8:
		return Command("EXISTS", respKeys(r, 1+r.IntN(50))...)
	case 9:
		var args [][]byte
		for range 1 + r.IntN(30) {
			args = append(args, respKey(r), respValue(r)[:0])
		}
		return Command("MSET", args...)
	case 10:
		return Command([]string{"DEL", "UNLINK"}[r.IntN(2)], respKeys(r, 1+r.IntN(50))...)
	case 11:
		return Command("SCAN", []byte("0"), []byte("COUNT"), num(2000))
	case 12:
		return Command([]string{"DBSIZE", "INFO", "TIME", "COMMAND", "RESET", "PING"}[r.IntN(6)])
	case 13:
		return Command("CLIENT", []byte([]string{"LIST", "INFO", "ID", "SETNAME"}[r.IntN(4)]), k)
	case 14:
		return Command("SELECT", num(18))
	case 15:
		return Command("FLUSHDB")
	case 16:
		return Command("EXPIRE", k, num(3))
	case 17:
		return Command("PERSIST", k)
	case 18:
		return respLogin(r)
	case 19:
		return Command("ECHO", respValue(r))
	case 20:
		return Command([]string{"TTL", "TYPE", "STRLEN", "NONE", "QUIT"}[r.IntN(5)], k)
	case 21:
		return fmt.Appendf(nil, "GET %s\r\n", k)
	case 22: // announces more than it sends
		return fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\nx", r.IntN(600<<20))
	}
	return Command("SETEX", k, num(5), respValue(r))
}

// respCutter ends one conversation at every byte in turn, in every way a connection can end.
type respCutter struct{}

// Name implements Player.
func (respCutter) Name() string { return "resp-cut" }

var cutAt atomic.Int64

// Play implements Player.
func (respCutter) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	talk := bytes.Join([][]byte{
		Command("AUTH", []byte(TokenHostile)), Command("SET", []byte("k1"), []byte("value"), []byte("EX"), []byte("100")), Command("GET", []byte("k1")),
		Command("MSET", []byte("k2"), []byte("a"), []byte("k3"), []byte("b")), Command("MGET", []byte("k2"), []byte("k3"), []byte("k4")), Command("DEL", []byte("k1")),
	}, nil)
	for range 8 {
		c, err := t.Dial(ctx, Resp, r)
		if err != nil {
			return nil
		}
		if err := Deliver(ctx, r, c, talk[:cutAt.Add(1)%int64(len(talk)+1)]); err != nil {
			return err
		}
	}
	return nil
}

// flooder opens many connections at once, over any protocol, and says nothing or the beginning of something.
type flooder struct{}

// Name implements Player.
func (flooder) Name() string { return "flood" }

// Play implements Player.
func (flooder) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	protocol := []string{Wire, Resp, HTTP}[r.IntN(3)]
	say := []string{"", "*", "GET / HTTP/1.1\r\nX: ", "*1\r\n$4\r\nPING\r\n*", "\x00\x00\x00"}[r.IntN(5)]
	for range r.IntN(48) {
		c, err := t.Dial(ctx, protocol, r)
		if err != nil {
			break
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _ = c.Write([]byte(say))
	}
	pause(ctx, time.Duration(r.IntN(400))*time.Millisecond)
	return nil
}

// polite is a client of the hostile tenant that does as one should: what honest clients' calls beside hostile ones are compared with.
type polite struct{}

// Play says something that is right, and reads what comes back.
func (polite) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	c, err := t.Dial(ctx, Resp, r)
	if err != nil {
		return nil
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	talk := Command("AUTH", []byte(TokenHostile))
	for range 1 + r.IntN(12) {
		k := respKey(r)
		talk = append(talk, Command("SET", k, respValue(r))...)
		talk = append(talk, Command("GET", k)...)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = c.Write(append(talk, Command("QUIT")...))
	}()
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
	_ = c.Close()
	<-sent
	return nil
}
