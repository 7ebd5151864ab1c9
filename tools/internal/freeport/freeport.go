// Package freeport gives tests and benches ports for servers that are ended and started again at the same one: what a
// listener at port 0 was given is another test's as soon as it is closed.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
)

// Ports are below those that systems give by themselves.
const (
	first = 12_000
	many  = 18_000
)

// Addr is 127.0.0.1 with a port that nobody listens at, and that no other test on this machine is given until t is
// over.
func Addr(t testing.TB) string {
	t.Helper()
	addr, giveBack, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(giveBack)
	return addr
}

// Take is Addr for what is no test: no other is given the port until it is given back.
func Take() (addr string, giveBack func(), err error) {
	for range 1000 {
		n := first + rand.N(many)
		hold, free := reserve(n)
		if !free {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", n)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			hold()
			continue
		}
		if err := l.Close(); err != nil {
			hold()
			return "", nil, err
		}
		return addr, hold, nil
	}
	return "", nil, errors.New("no port is free")
}

// reserve takes a port among tests, by the name of a socket that ends with its process; elsewhere than on Linux by
// luck.
func reserve(n int) (giveBack func(), free bool) {
	if runtime.GOOS != "linux" {
		return func() {}, true
	}
	l, err := net.Listen("unix", fmt.Sprintf("@skep-test-port-%d", n))
	if err != nil {
		return nil, false
	}
	return func() { l.Close() }, true
}
