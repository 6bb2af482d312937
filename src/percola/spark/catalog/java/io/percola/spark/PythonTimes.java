package io.percola.spark;

import java.sql.Date;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;

import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.sources.Filter;

import scala.Product;

/**
 * Python's years are 1 to 9999, and PySpark makes Python's values of each literal of a filter.
 *
 * <p>A filter with another one, such as the end of the year 9999 in New York, would end the query.
 */
final class PythonTimes {
  private static final long FIRST_DAY = LocalDate.of(1, 1, 1).toEpochDay();
  private static final long LAST_DAY = LocalDate.of(9999, 12, 31).toEpochDay();
  private static final long MICROS_A_DAY = 86_400_000_000L;

  private PythonTimes() {}

  /** Whether Python has a value for each date and each time in a filter, or in a part of one. */
  static boolean hasAll(Object value) {
    if (value instanceof Filter) {
      Product parts = (Product) value;
      for (int at = 0; at < parts.productArity(); at++) {
        if (!hasAll(parts.productElement(at))) {
          return false;
        }
      }
    } else if (value instanceof Object[]) { // Of IN.
      for (Object one : (Object[]) value) {
        if (!hasAll(one)) {
          return false;
        }
      }
    } else if (value instanceof Date) {
      return hasDay(DateTimeUtils.fromJavaDate((Date) value));
    } else if (value instanceof LocalDate) {
      return hasDay(((LocalDate) value).toEpochDay());
    } else if (value instanceof Timestamp) {
      return hasMicros(DateTimeUtils.fromJavaTimestamp((Timestamp) value));
    } else if (value instanceof Instant) {
      return hasMicros(DateTimeUtils.instantToMicros((Instant) value));
    } else if (value instanceof LocalDateTime) {
      return hasMicros(DateTimeUtils.localDateTimeToMicros((LocalDateTime) value));
    }
    return true;
  }

  private static boolean hasDay(long day) {
    return FIRST_DAY <= day && day <= LAST_DAY;
  }

  private static boolean hasMicros(long micros) {
    return hasDay(Math.floorDiv(micros, MICROS_A_DAY));
  }
}
