package naming

import (
	"context"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Open gives the namespace of a spec, which it makes where there is none of its tenant and name.
func (m *Namer) Open(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	const op = "open namespace"
	var zero skep.NamespaceInfo
	if err := m.take(ctx, op); err != nil {
		return zero, err
	}
	defer m.turn.Give()
	if info, err := m.Names.Known(spec); info.ID != 0 || err != nil {
		return info, err
	}
	n := m.Names
	next, have := m.Root.Numbers(), n.Len()
	if have >= namespaces.MaxNamespaces {
		return zero, skep.Invalidf(op, "namespaces", have, namespaces.MaxNamespaces)
	}
	if have, most := n.CountOf(spec.Tenant), m.PerTenant; have >= most {
		return zero, &skep.Error{Op: op, Kind: skep.Quota, Field: "namespaces of the tenant", Value: have,
			Limit: "at most " + strconv.Itoa(most)}
	}
	next.Namespace++
	next.Instance++
	info := skep.NamespaceInfo{ID: skep.NamespaceID(next.Namespace), NamespaceSpec: spec, Created: m.Wall().UTC()}
	// A row that cannot be entered would keep the store from opening.
	ns, err := n.Prepare(info, next.Instance)
	if err != nil {
		return zero, err
	}
	row := &catalog.Namespace{NamespaceInfo: info, Instance: next.Instance}
	b := m.Catalog.NewBatch()
	b.PutNamespace(row)
	var w segment.LogWriter
	if err := w.Namespace(&segment.Namespace{Seq: m.Root.Next(), Instance: row.Instance, Info: info}); err != nil {
		return zero, err
	}
	todo := m.Logs.Intents.Put(b, &w)
	if err := m.save(b, next); err != nil {
		return zero, err
	}
	n.Enter(ns)
	m.Logs.CarryOut(ctx, todo) // before anybody can put a block of it
	n.Publish(ns)
	return ns.Info, nil
}
