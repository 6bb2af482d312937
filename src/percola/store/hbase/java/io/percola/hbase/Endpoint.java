package io.percola.hbase;

import static java.lang.invoke.MethodType.methodType;

import java.io.IOException;
import java.lang.invoke.MethodHandle;
import java.util.ArrayList;
import java.util.List;

/**
 * Sends requests by HBase's client, of which it knows only methods: so this is compiled without it.
 *
 * <p>percola/store/hbase/method_handles.py makes them.
 */
public final class Endpoint implements Sender {
  private final MethodHandle change;
  private final MethodHandle call;
  private final MethodHandle batch;
  private final MethodHandle answer;

  /**
   * @param change (table, row, request) → the answer to a single request
   * @param call (row, request) → a call for a batch
   * @param batch (table, calls, results): make the calls, one for each server, and fill in results
   * @param answer a result → the answer in it
   */
  public Endpoint(MethodHandle change, MethodHandle call, MethodHandle batch, MethodHandle answer) {
    this.change =
        change.asType(methodType(byte[].class, Object.class, byte[].class, byte[].class));
    this.call = call.asType(methodType(Object.class, byte[].class, byte[].class));
    this.batch = batch.asType(methodType(void.class, Object.class, List.class, Object[].class));
    this.answer = answer.asType(methodType(byte[].class, Object.class));
  }

  @Override
  public Object[] send(Object table, byte[][] rows, byte[][] messages) {
    Object[] answers = new Object[rows.length];
    Object missing = null;
    try {
      if (rows.length == 1) {
        // The client uses threads of its own for a batch.
        answers[0] = (byte[]) change.invokeExact(table, rows[0], messages[0]);
      } else {
        missing = sendAll(table, rows, messages, answers);
      }
    } catch (Throwable error) {
      missing = error;
    }
    for (int at = 0; at < answers.length; at++) {
      if (answers[at] == null) {
        answers[at] = missing != null ? missing : new IOException("HBase's client has no answer");
      }
    }
    return answers;
  }

  /** Send several; returns why there is no answer to those that have none. */
  private Throwable sendAll(Object table, byte[][] rows, byte[][] messages, Object[] answers)
      throws Throwable {
    List<Object> calls = new ArrayList<>(rows.length);
    for (int at = 0; at < rows.length; at++) {
      calls.add((Object) call.invokeExact(rows[at], messages[at]));
    }
    Object[] results = new Object[rows.length];
    Throwable missing = null;
    try {
      batch.invokeExact(table, calls, results);
    } catch (Throwable error) {
      missing = error;
    }
    for (int at = 0; at < results.length; at++) {
      // Read once: of a call that has timed out, the client may still fill in the result.
      Object result = results[at];
      if (result instanceof Throwable) {
        answers[at] = result;
      } else if (result != null) {
        answers[at] = (byte[]) answer.invokeExact(result);
      }
    }
    return missing;
  }
}
