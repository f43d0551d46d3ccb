// Package clustertest runs several brokers in one process, over real sockets and
// disks in memory, cuts and slows the network between them, crashes them at
// chosen steps, and compares what clients were told with what is there
// afterwards. It holds tests only.
package clustertest
