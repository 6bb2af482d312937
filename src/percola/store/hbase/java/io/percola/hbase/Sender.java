package io.percola.hbase;

/** Sends requests to change rows, each to the coprocessor in the region of its row. */
public interface Sender {
  /**
   * Send requests of one table together.
   *
   * @param rows a row of each request, by which its region is found
   * @param messages the requests
   * @return for each request the endpoint's answer, a byte[], or a Throwable: why there is none
   */
  Object[] send(Object table, byte[][] rows, byte[][] messages);
}
