// Package replication makes one Store of many nodes.
package replication
