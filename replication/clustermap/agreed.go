package clustermap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/skepkv/skep"
)

// validPeer refuses what is no address that a node reaches another one at.
func validPort(what, at, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || host == "" || n == 0 || len(addr) > MaxNameSize || !printable(addr) {
		return skep.Invalidf(op, what+" address of "+at, fmt.Sprintf("%q", addr), "HOST:PORT with a port from 1 to 65535")
	}
	return nil
}

// validNew looks at a node that a cluster is to have: its addresses have to be those that others reach it at.
func validNew(n *Node) error {
	path, local := strings.CutPrefix(n.Addr, "unix:")
	host, port, err := net.SplitHostPort(n.Addr)
	number, bad := strconv.ParseUint(port, 10, 16)
	if local && path == "" || !local && (err != nil || bad != nil || number == 0 || host == "" || everywhere(host)) {
		return skep.Invalidf(op, "address of node "+n.Name, fmt.Sprintf("%q", n.Addr),
			"unix: and a path, or the HOST:PORT that clients connect to")
	}
	if host, _, err := net.SplitHostPort(n.Peer); err == nil && everywhere(host) {
		return skep.Invalidf(op, "peer address of node "+n.Name, fmt.Sprintf("%q", n.Peer),
			"the HOST:PORT that other nodes connect to")
	}
	if host, _, err := net.SplitHostPort(n.RESP); err == nil && everywhere(host) {
		return skep.Invalidf(op, "resp address of node "+n.Name, fmt.Sprintf("%q", n.RESP),
			"the HOST:PORT that Redis clients connect to")
	}
	return nil
}

// everywhere says whether a host is that of all addresses of a machine, which nobody can connect to from elsewhere.
func everywhere(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}

// validAgreed looks at what the nodes agree on.
func (m *Map) validAgreed() error {
	if m.Returned > m.Epoch {
		return skep.Invalidf(op, "epoch at which a node has returned", m.Returned, fmt.Sprintf("at most %d", m.Epoch))
	}
	if err := m.validSilence(); err != nil {
		return err
	}
	if err := m.validRecovered(); err != nil {
		return err
	}
	if len(m.Namespaces) > MaxNamespaces {
		return skep.Invalidf(op, "namespaces", len(m.Namespaces), fmt.Sprintf("at most %d", MaxNamespaces))
	}
	type name struct{ tenant, name string }
	names := map[name]bool{}
	last := skep.NamespaceID(0)
	for i := range m.Namespaces {
		n := &m.Namespaces[i]
		at := fmt.Sprintf("namespace %d", i)
		if n.ID <= last || n.ID > m.LastNamespace {
			return skep.Invalidf(op, "id of "+at, n.ID, fmt.Sprintf("%d to %d", uint64(last)+1, m.LastNamespace))
		}
		if err := n.NamespaceSpec.Validate(); err != nil {
			return err
		}
		if names[name{n.Tenant, n.Name}] {
			return skep.Invalidf(op, "name of "+at, n.Name, "no other namespace's of its tenant")
		}
		last, names[name{n.Tenant, n.Name}] = n.ID, true
	}
	return nil
}

// Decode reads what Encode writes, all of it, and checks it.
func Decode(b []byte) (*Map, error) {
	if len(b) > MaxBytes {
		return nil, skep.Invalidf(op, "size in bytes", len(b), fmt.Sprintf("at most %d", MaxBytes))
	}
	m := &Map{}
	if err := strictly(b, m); err != nil {
		return nil, err
	}
	return m, m.Validate()
}

// strictly reads one value of JSON that has no fields but v's.
func strictly(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("there is more than one value")
		}
	}
	if err != nil {
		if typed := (*skep.Error)(nil); errors.As(err, &typed) {
			return typed
		}
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "text", Limit: "JSON of this format", Err: err}
	}
	return nil
}

// Public is the map as clients are told it: without the namespaces, which are other tenants', too.
func (m *Map) Public() *Map {
	p := *m
	p.LastNode, p.LastNamespace, p.Namespaces, p.Returned, p.Silence, p.Recovered = 0, 0, nil, 0, Silence{}, nil
	p.Nodes = slices.Clone(m.Nodes)
	for i := range p.Nodes {
		p.Nodes[i].Missed, p.Nodes[i].Lease = nil, 0
	}
	return &p
}

// Namespace finds a namespace by its tenant and name.
func (m *Map) Namespace(tenant, name string) (*Namespace, error) {
	for i := range m.Namespaces {
		if n := &m.Namespaces[i]; n.Tenant == tenant && n.Name == name {
			return n, nil
		}
	}
	return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: name, Limit: "one of tenant " + tenant}
}
