// Package clusterdemo shows a cluster on one machine: three servers, each a process of its own, a chat workload on
// all of them, and a kill of one. It says what was lost meanwhile, and what is found when the node is back.
package clusterdemo
